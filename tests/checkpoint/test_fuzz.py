"""Mutated and random headers, indexes and configurations: facts or one clear error, and nothing else."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardlint.checkpoint.folder import CheckpointError, collect_checkpoint
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.facts import CheckpointFacts, Facts
from shardlint.facts.codec import decode_facts, encode_facts
from shardlint.loading.identity_loader import IdentityLoader
from shardlint.loading.loader import PlannedTarget
from shardlint.loading.planner import LiveModel, make_plan
from shardlint_rules.pack import shardlint_rules
from support.safetensors_files import header

MUTATIONS = 10_000
SEED = 20261130
RULES = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.phase.value == "D5"]
TENSORS = {
    "model.embed.weight": ("F32", [4, 2]),
    "model.layers.0.mlp.experts.0.w1.weight": ("BF16", [2, 2]),
    "model.layers.0.mlp.experts.1.w1.weight": ("F8_E4M3", [2, 2]),
    "model.layers.0.mlp.experts.1.w1.weight_scale_inv": ("F32", [1, 1]),
    "lm_head.weight": ("I8", []),
}
WORDS = [b"__metadata__", b"dtype", b"shape", b"data_offsets", b"F32", b"weight_map", b"metadata", b"model.safetensors"]
SNIPPETS = [
    *(b'"', b"{", b"}", b"[", b"]", b":", b",", b"\\", b"\\u0000", b"\\ud800", b"\\n", b"\x00", b"\xff", b"\x1b[31m"),
    *(b"-1", b"0", b"1e999", b"1.0", b"9223372036854775808", b"1" * 40, b"null", b"true", b"../", b"/", b"[" * 99),
]


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """One to four changes: cut, doubled, overwritten, spliced with syntax or words."""
    data = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 1, 2, 8, 40)))
        match chance.randrange(6):
            case 0:
                del data[at:end]
            case 1:
                data[at:at] = data[at:end]
            case 2:
                data[at:end] = bytes(chance.randrange(256) for _ in range(end - at))
            case 3:
                data[at:end] = chance.choice(SNIPPETS)
            case 4:
                data[at:at] = chance.choice(WORDS)
            case _:
                data[at:at] = chance.choice(SNIPPETS)
    return bytes(data)


def refused(error: CheckpointError) -> None:
    assert str(error).isprintable()


def live_model() -> LiveModel:
    shapes = {key: tuple(shape) for key, (_, shape) in TENSORS.items()}
    return LiveModel(tensors={key: PlannedTarget(shape=shapes[key], dtype="float32", identity=key) for key in shapes})


def look_at(folder: Path, *, deeply: bool) -> CheckpointFacts | None:
    """What must hold of any input: facts that can be written and read, a plan, and rules that do not crash."""
    try:
        facts = collect_checkpoint(folder)
    except CheckpointError as error:
        refused(error)
        return None
    assert all(problem.detail.isprintable() for problem in facts.problems)
    if deeply:
        encoded = encode_facts(Facts(checkpoint=facts))
        assert encode_facts(decode_facts(encoded)) == encoded
        tensors = {
            key: PlannedTarget(shape=tuple(shape), dtype="float32", identity=key) for key, (_, shape) in TENSORS.items()
        }
        plan = make_plan(IdentityLoader(), LiveModel(tensors=tensors), facts)
        outcomes = evaluate(Facts(checkpoint=facts, plan=plan), RULES).outcomes
        assert not [item.code for item in outcomes if item.status is Status.CRASHED]
    return facts


def test_mutations_of_a_file(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    raw, size = header(TENSORS, {"format": "pt"})
    whole = struct.pack("<Q", len(raw)) + raw + bytes(size)
    path = tmp_path / "model.safetensors"
    silent = 0
    for number in range(MUTATIONS):
        if chance.random() < 0.5:
            path.write_bytes(mutated(whole, chance))
        else:
            changed = mutated(raw, chance)  # the length stays right, so that the JSON is reached
            path.write_bytes(struct.pack("<Q", len(changed)) + changed + bytes(size))
        facts = look_at(tmp_path, deeply=number % 10 == 0)
        silent += facts is not None and not facts.problems
    assert silent < MUTATIONS / 2


def test_mutations_of_an_index_and_a_configuration(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    raw, size = header(TENSORS, {"format": "pt"})
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(size))
    index = json.dumps(
        {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(TENSORS, "a.safetensors")}
    ).encode()
    config = json.dumps({"model_type": "llama", "architectures": ["X"], "quantization_config": {"quant_method": "fp8"}})
    unusable = 0
    for number in range(MUTATIONS // 10):
        (tmp_path / "model.safetensors.index.json").write_bytes(mutated(index, chance))
        (tmp_path / "config.json").write_bytes(mutated(config.encode(), chance))
        facts = look_at(tmp_path, deeply=number % 4 == 0)
        assert facts is not None  # whatever the texts say, there is a weight file
        kinds = {problem.file: problem.kind for problem in facts.problems}
        broken = kinds.get("model.safetensors.index.json", "") in ("index-json", "index-schema")
        assert broken or facts.index is not None
        assert (facts.config is None) is ("config.json" in kinds)
        unusable += broken
    assert 0 < unusable < MUTATIONS // 10


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
infos = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "F99"]) | values,
        "shape": st.lists(st.integers(-1, 2**65), max_size=4) | values,
        "data_offsets": st.lists(st.integers(-1, 2**65), min_size=1, max_size=3) | values,
    }
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.dictionaries(st.text(max_size=12), infos | values, max_size=4), padding=st.integers(0, 9))
def test_headers_that_are_json(table: dict[str, Any], padding: int, tmp_path: Path) -> None:
    raw = json.dumps(table).encode("utf-8", "replace")
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(padding))
    facts = look_at(tmp_path, deeply=True)
    assert facts is not None
    (file,) = [file for file in facts.files if file.name == "model.safetensors"]
    assert file.tensors == len(facts.entries) <= len(table)
    tensors = table.keys() - {"__metadata__"}
    assert facts.problems or {entry.key for entry in facts.entries} == tensors


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60))
def test_bytes_of_any_kind(content: bytes, tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.safetensors.index.json", "config.json"):
        (tmp_path / name).write_bytes(content)
    facts = look_at(tmp_path, deeply=True)
    assert facts is not None
    assert facts.problems
    assert evolve(facts, problems=()).entries == ()
