"""Synthesised checkpoints of the size of real ones, and what planning them costs. Run as a script, prints JSON."""

from __future__ import annotations

import gc
import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

Tensors = Iterator[tuple[str, str, list[int]]]

DEEPSEEK = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 61,
    "dtype": "bfloat16",
}


def deepseek_tensors() -> Tensors:
    """The 45,000 keys of a 671B mixture of experts, in bfloat16."""
    hidden, inner, experts = 7168, 2048, 256
    yield "model.embed_tokens.weight", "BF16", [129280, hidden]
    for layer in range(61):
        base = f"model.layers.{layer}"
        yield f"{base}.self_attn.q_a_proj.weight", "BF16", [1536, hidden]
        yield f"{base}.self_attn.q_a_layernorm.weight", "BF16", [1536]
        yield f"{base}.self_attn.q_b_proj.weight", "BF16", [24576, 1536]
        yield f"{base}.self_attn.kv_a_proj_with_mqa.weight", "BF16", [576, hidden]
        yield f"{base}.self_attn.kv_a_layernorm.weight", "BF16", [512]
        yield f"{base}.self_attn.kv_b_proj.weight", "BF16", [32768, 512]
        yield f"{base}.self_attn.o_proj.weight", "BF16", [hidden, 16384]
        yield f"{base}.input_layernorm.weight", "BF16", [hidden]
        yield f"{base}.post_attention_layernorm.weight", "BF16", [hidden]
        if layer < 3:
            yield from projections(f"{base}.mlp", hidden, 18432)
            continue
        yield f"{base}.mlp.gate.weight", "BF16", [experts, hidden]
        yield f"{base}.mlp.gate.e_score_correction_bias", "F32", [experts]
        yield from projections(f"{base}.mlp.shared_experts", hidden, inner)
        for expert in range(experts):
            yield from projections(f"{base}.mlp.experts.{expert}", hidden, inner)
    yield "model.norm.weight", "BF16", [hidden]
    yield "lm_head.weight", "BF16", [129280, hidden]


def projections(base: str, hidden: int, inner: int) -> Tensors:
    yield f"{base}.gate_proj.weight", "BF16", [inner, hidden]
    yield f"{base}.up_proj.weight", "BF16", [inner, hidden]
    yield f"{base}.down_proj.weight", "BF16", [hidden, inner]


def many_tensors() -> Tensors:
    """100,000 keys without any conversion."""
    for layer in range(1000):
        for block in range(100):
            yield f"net.layers.{layer}.block.{block}.projection.weight", "BF16", [16, 16]


def write(folder: Path, tensors: Tensors, files: int) -> int:
    """Write headers and files full of holes; return the number of keys."""
    folder.mkdir(parents=True, exist_ok=True)
    found = list(tensors)
    share = -(-len(found) // files)
    weight_map = {}
    for number in range(files):
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for key, dtype, shape in found[number * share : (number + 1) * share]:
            size = (4 if dtype == "F32" else 2) * shape[0] * (shape[1] if len(shape) > 1 else 1)
            table[key] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
            position += size
            weight_map[key] = name
        raw = json.dumps(table).encode()
        with (folder / name).open("wb") as stream:
            stream.write(struct.pack("<Q", len(raw)) + raw)
            stream.truncate(8 + len(raw) + position)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return len(found)


def decode(folder: Path) -> int:
    """What nobody can do without: read the headers and decode their JSON."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            count += len(json.loads(stream.read(length))) - 1
    return count


def seconds(call: Any) -> tuple[float, Any]:
    """CPU seconds of one call, with the garbage collector as Python has it."""
    gc.collect()
    started = time.process_time()
    result = call()
    return time.process_time() - started, result


def rss() -> int:
    """The most bytes that this process held. Not `ru_maxrss`, which a child inherits from the process that forks it."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024


def plan_deepseek(folder: Path) -> dict[str, Any]:
    """Plan from the folder alone, the architecture built on meta, all D5 rules."""
    import torch  # noqa: F401 - imports are not what is measured
    import transformers.models.deepseek_v3.modeling_deepseek_v3  # noqa: F401

    from shardlint.checkpoint.folder import collect_checkpoint
    from shardlint.engine.runner import SelectedRule, evaluate
    from shardlint.facts import Facts
    from shardlint.loading.plan import collect_plan
    from shardlint_rules.pack import shardlint_rules

    rules = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.phase.value == "D5"]
    before = rss()
    base, _ = seconds(lambda: decode(folder))
    reading, checkpoint = seconds(lambda: collect_checkpoint(folder))
    planning, plan = seconds(lambda: collect_plan(checkpoint))
    judging, found = seconds(lambda: evaluate(Facts(checkpoint=checkpoint, plan=plan), rules))
    return {
        "decode": base,
        "read": reading,
        "plan": planning,
        "rules": judging,
        "imports_rss": before,
        "rss": rss(),
        "tensors": len(plan.tensors),
        "statuses": sorted({item.status for item in plan.tensors}),
        "findings": [item.code for item in found.findings],
    }


def plan_many(folder: Path) -> dict[str, Any]:
    """Plan by identity into live names, all D5 rules; the best of three for each part."""
    from shardlint.checkpoint.folder import collect_checkpoint
    from shardlint.engine.runner import SelectedRule, evaluate
    from shardlint.facts import Facts
    from shardlint.loading.identity_loader import IdentityLoader
    from shardlint.loading.loader import PlannedTarget
    from shardlint.loading.planner import LiveModel, make_plan
    from shardlint_rules.pack import shardlint_rules

    rules = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.phase.value == "D5"]
    live = LiveModel(
        tensors={
            key: PlannedTarget(shape=tuple(shape), dtype="bfloat16", identity=key) for key, _, shape in many_tensors()
        }
    )
    decoding = [seconds(lambda: decode(folder))[0] for _ in range(7)]  # first, while the heap is small
    before = rss()
    checkpoint = collect_checkpoint(folder)

    def work() -> Any:
        plan = make_plan(IdentityLoader(), live, checkpoint)
        return evaluate(Facts(checkpoint=checkpoint, plan=plan), rules)

    first, found = seconds(work)
    memory = rss() - before
    working = [first, *(seconds(work)[0] for _ in range(6))]
    return {
        "decode": median(decoding),
        "work": median(working),
        "memory": memory,
        "findings": [item.code for item in found.findings],
    }


if __name__ == "__main__":
    print(json.dumps({"deepseek": plan_deepseek, "many": plan_many}[sys.argv[1]](Path(sys.argv[2]))))
