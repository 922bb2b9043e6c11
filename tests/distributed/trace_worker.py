"""
One rank of a gloo job of two that traces training steps and lints with the traces.

    python trace_worker.py FOLDER RANK WORLD
"""

import datetime
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parents[1]))
import shardlint
from support.models import bert, llama, mixtral, t5

IDS = torch.arange(16).reshape(2, 8)
TOKENS = {"input_ids": IDS, "labels": IDS}
FAMILIES = {
    "llama": (lambda: llama(tie_word_embeddings=True), TOKENS),
    "mixtral": (mixtral, TOKENS),
    "t5": (lambda: t5(decoder_start_token_id=0), TOKENS),
    "bert": (bert, {"input_ids": IDS}),
}


def loss_of(output):
    return output.loss if getattr(output, "loss", None) is not None else output[0].sum() + output[1].sum()


def sharded(model, mesh):
    blocks = ("DecoderLayer", "BertLayer", "T5Block")
    for module in [item for item in model.modules() if type(item).__name__.endswith(blocks)]:
        fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def one_step(model, batch, trace):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if not trace:
        loss_of(model(**batch)).backward()
        optimizer.step()
        return None
    with shardlint.trace(model, optimizer) as t:
        loss_of(model(**batch)).backward()
        optimizer.step()
    return t


def linted(model, t):
    report = shardlint.lint(model, trace=t, config=False, select=["D7"], rank_timeout=60.0)
    return {
        "findings": [
            [item.code, item.subject, item.severity.value, list(item.ranks), item.message] for item in report.findings
        ],
        "clean": [item.code for item in report.outcomes if item.status.value == "clean"],
        "nothing": [item.code for item in report.outcomes if item.status.value == "nothing-to-judge"],
    }


def local(model):
    return [getattr(item, "_local_tensor", item).detach().clone() for item in model.parameters()]


class Branching(nn.Module):
    """A branch that the batch decides."""

    def __init__(self):
        super().__init__()
        self.body, self.extra = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, taken):
        x = self.body(x)
        return x + self.extra(x) if taken else x


def stage_of_a_pipeline(rank):
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "fsdp"))["fsdp"]
    model = Branching()
    fully_shard(model.extra, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with shardlint.trace(model) as t:
        model(torch.ones(1, 4), taken=rank == 1).sum().backward()
    return linted(model, t)


def unused_in_ddp(rank):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Branching(), find_unused_parameters=True)
    with shardlint.trace(model) as t:
        model(torch.ones(1, 4), taken=rank == 1).sum().backward()
    return linted(model, t)


def entered_on_one_rank(rank):
    group = dist.new_group([0, 1], backend="gloo", timeout=datetime.timedelta(seconds=6))
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("fsdp",))
    torch.manual_seed(0)
    model = Branching()
    for module in (model.body, model.extra):
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    t = shardlint.trace(model)
    try:
        with t:
            model(torch.ones(1, 4), taken=rank == 1).sum().backward()
    except RuntimeError:
        pass
    return {
        **linted(model, t),
        "raised": t.runtime.raised,
        "hooks": sum(len(m._forward_hooks) for m in model.modules()),
    }


def step_of(model, *, before=None, batch=TOKENS):
    """A traced step of a Llama, after what `before` does with it inside the trace."""
    optimizer = torch.optim.AdamW([item for item in model.parameters() if item.requires_grad], lr=0.01)
    with shardlint.trace(model, optimizer) as t:
        if before is not None:
            before(model)
        loss_of(model(**batch)).backward()
        optimizer.step()
    return linted(model, t) | {"kinds": sorted({unit.kind for unit in t.runtime.units})}


def fsdp1(mesh, *, originals, bypassed=False):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = llama(tie_word_embeddings=False).train()
    policy = ModuleWrapPolicy({type(model.model.layers[0])})
    options = {"auto_wrap_policy": policy, "use_orig_params": originals, "device_id": torch.device("cpu")}
    wrapped = FullyShardedDataParallel(model, device_mesh=mesh, **options)
    if bypassed:  # the second layer is left out of the forward
        wrapped.module.config.num_hidden_layers = 1
    return wrapped


def accumulated(model):
    """A micro-step without synchronisation, as accumulation of gradients does it."""
    model.set_requires_gradient_sync(False)
    model.set_is_last_backward(False)
    loss_of(model(**TOKENS)).backward()
    model.set_requires_gradient_sync(True)
    model.set_is_last_backward(True)


def evaluated(model):
    with torch.no_grad():
        model(**TOKENS)


def in_units(mesh, *, frozen=False, wanted=False):
    """A Llama with units for the embedding and the head as well; `wanted`: the last layer prefetches a frozen unit."""
    model = llama(tie_word_embeddings=False).train()
    if frozen:
        model.model.embed_tokens.weight.requires_grad_(False)
    for module in (model.model.embed_tokens, *model.model.layers):
        fully_shard(module, mesh=mesh)
    fully_shard([model.model.norm, model.lm_head], mesh=mesh, reshard_after_forward=False)
    if wanted:
        model.model.layers[0].set_modules_to_backward_prefetch([model.model.embed_tokens])
    return fully_shard(model, mesh=mesh)


def quiet_steps(mesh):
    """Right steps that look odd to a trace."""
    return {
        "fsdp1 originals": step_of(fsdp1(mesh, originals=True)),
        "fsdp1 flat": step_of(fsdp1(mesh, originals=False)),
        "accumulated": step_of(in_units(mesh), before=accumulated),
        "evaluated": step_of(in_units(mesh), before=evaluated),
        "frozen unit": step_of(in_units(mesh, frozen=True)),
    }


def main():
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timeout)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    out = {}
    for family, (build, batch) in FAMILIES.items():
        after = {}
        for traced in (False, True):
            model = sharded(build().train(), mesh)
            t = one_step(model, batch, traced)
            after[traced] = local(model)
        out[f"fsdp2 {family}"] = linted(model, t)
        out[f"fsdp2 {family}"]["same"] = all(map(torch.equal, after[False], after[True]))
        out[f"fsdp2 {family}"]["order"] = t.runtime.order("forward")
        model = nn.parallel.DistributedDataParallel(build().train())
        out[f"ddp {family}"] = linted(model, one_step(model, batch, True))
    out |= quiet_steps(mesh)
    out["frozen unit wanted"] = step_of(in_units(mesh, frozen=True, wanted=True))
    for originals in (True, False):
        out[f"fsdp1 bypassed {originals}"] = step_of(fsdp1(mesh, originals=originals, bypassed=True))
    out["pipeline"] = stage_of_a_pipeline(rank)
    out["unused"] = unused_in_ddp(rank)
    out["entered"] = entered_on_one_rank(rank)
    (folder / f"seen.{rank}").write_text(json.dumps(out))
    os._exit(0)  # a group of the job is broken on purpose: nothing to be torn down in order


if __name__ == "__main__":
    main()
