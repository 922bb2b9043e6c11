"""
One rank of a gloo job that verifies sharded models, right ones and damaged ones.

    python weights_worker.py FOLDER CHECKPOINT RANK WORLD

Each scenario returns what its rank saw; it is written as `NAME.RANK.json`.
"""

import datetime
import json
import os
import sys
import time
import traceback
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shardlint import weights
from shardlint.weights import RowKind, faults
from shardlint.weights.compare.bits import bits_of

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


class Job:
    def __init__(self, folder: Path, checkpoint: str, rank: int, world: int) -> None:
        self.folder, self.checkpoint, self.rank, self.world = folder, checkpoint, rank, world
        self.meshes = {}

    def mesh(self, **axes):
        key = tuple(axes.items())
        if key not in self.meshes:
            self.meshes[key] = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        return self.meshes[key]

    def model(self):
        from transformers import MixtralForCausalLM

        return MixtralForCausalLM.from_pretrained(self.checkpoint)

    def verify(self, model, **settings):
        result = weights.verify(model, settings.pop("checkpoint", self.checkpoint), **settings)
        return seen(result)


def seen(result):
    rows = [row for row in result.of_kind(RowKind.LIVE) if row.load_mismatches]
    return {
        "verdict": result.verdict.value,
        "wrong": {row.name: [row.load_mismatches, row.first.rank, list(row.first.checkpoint_index)] for row in rows},
        "errors": [list(error) for error in result.errors],
        "layouts": [[layout.name, layout.declared, layout.found, list(layout.ranks)] for layout in result.layouts],
        "replicas": [[group.name, group.reference, list(group.ranks)] for group in result.replicas],
        "faults": [fault.what for fault in faults(result)],
        "bytes": result.compared_bytes,
        "checked": sum(row.checked for row in result.of_kind(RowKind.LIVE)),
        "stored": sum(row.checked == row.expected for row in result.of_kind(RowKind.CHECKPOINT)),
        "exchanged": list(result.exchanged),
    }


def local(parameter):
    return parameter._local_tensor if isinstance(parameter, DTensor) else parameter.data


def fsdp(job, model, mesh):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(model, mesh):
    for layer in model.model.layers:
        plan = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"} | {"self_attn.o_proj": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
    return model


@scenario
def fsdp2(job):
    return job.verify(fsdp(job, job.model(), job.mesh(dp=job.world)))


@scenario
def fsdp2_of_uneven_shards(job):
    """The checkpoint's vocabulary of 95 rows divides by neither 2 nor 4; full mode reads every replica."""
    return job.verify(fsdp(job, job.model(), job.mesh(dp=job.world)), replicas="full")


@scenario
def fsdp2_and_tensor_parallel(job):
    mesh = job.mesh(dp=job.world // 2, tp=2)
    return job.verify(fsdp(job, tensor_parallel(job.model(), mesh["tp"]), mesh["dp"]))


@scenario
def hybrid(job):
    return job.verify(fsdp(job, job.model(), job.mesh(replicate=job.world // 2, shard=2)))


@scenario
def hybrid_full(job):
    return job.verify(fsdp(job, job.model(), job.mesh(replicate=job.world // 2, shard=2)), replicas="full")


def with_expert_parallel(job):
    model, mesh = job.model(), job.mesh(ep=job.world)
    for layer in model.model.layers:
        experts = layer.mlp.experts
        for name, value in list(experts.named_parameters(recurse=False)):
            setattr(experts, name, nn.Parameter(distribute_tensor(value.detach(), mesh, [Shard(0)])))
    return model


@scenario
def expert_parallel(job):
    return job.verify(with_expert_parallel(job))


@scenario
def one_damaged_shard(job):
    model = with_expert_parallel(job)
    if job.rank == job.world - 1:
        bits_of(local(model.model.layers[1].mlp.experts.down_proj))[0, 2, 3] ^= 1
    return job.verify(model)


@scenario
def one_damaged_replica(job):
    """A norm that every rank holds whole, wrong on one of them."""
    model = with_expert_parallel(job)
    if job.rank == 1:
        bits_of(model.model.norm.weight)[5] ^= 1
    return {"verify": job.verify(model), "alone": seen(weights.compare_replicas(model))}


@scenario
def equal_replicas(job):
    return seen(weights.compare_replicas(with_expert_parallel(job)))


@scenario
def packed_under_a_plain_shard(job):
    """Each rank holds its halves of gate and up, packed, while the placement says one run of rows."""
    model, mesh = job.model(), job.mesh(tp=job.world)
    for layer in model.model.layers:
        experts = layer.mlp.experts
        full = experts.gate_up_proj.detach()
        gate, up = full.chunk(2, 1)
        mine = torch.cat([gate.chunk(job.world, 1)[job.rank], up.chunk(job.world, 1)[job.rank]], 1)
        experts.gate_up_proj = nn.Parameter(DTensor.from_local(mine, mesh, [Shard(1)]))
    return job.verify(model)


@scenario
def one_rank_fails_while_it_reads(job):
    model = job.model()
    if job.rank == 1:
        from shardlint.weights.storage import stored_tensors as sources

        def broken(*_):
            raise sources.ReadError("model.safetensors: ends at byte 7")

        with mock.patch.object(sources.Files, "read_into", broken):
            return job.verify(model, replicas="full")
    return job.verify(model, replicas="full")


@scenario
def one_rank_has_no_checkpoint(job):
    return job.verify(job.model(), checkpoint=job.checkpoint if job.rank != 1 else "/nowhere/at/all")


@scenario
def a_partial_placement(job):
    from torch.distributed.tensor import Partial

    model, mesh = job.model(), job.mesh(tp=job.world)
    value = model.model.norm.weight.detach()
    model.model.norm.weight = nn.Parameter(DTensor.from_local(value, mesh, [Partial()]))
    return job.verify(model)


@scenario
def replicated_on_a_mesh(job):
    model, mesh = job.model(), job.mesh(dp=job.world)
    for module in model.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(distribute_tensor(value.detach(), mesh, [Replicate()])))
    return job.verify(model)


@scenario
def a_sharded_export(job):
    """What FSDP2 saves through torch.distributed.checkpoint, against the original; the work is divided."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    model = fsdp(job, job.model(), job.mesh(dp=job.world))
    right, wrong = (f"{job.folder}/{name}" for name in ("export", "damaged"))
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=right)
    if job.rank == job.world - 1:
        bits_of(local(model.model.layers[1].mlp.experts.gate_up_proj))[0, 2, 3] ^= 1
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=wrong)
    return {
        "right": seen(weights.compare_checkpoints(right, job.checkpoint)),
        "wrong": seen(weights.compare_checkpoints(wrong, job.checkpoint)),
    }


@scenario
def a_folder_that_fsdp2_saved(job):
    """The sharded model and its optimizer as they are saved, live against the folder under several layouts."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    mesh = job.mesh(dp=job.world)
    model = fsdp(job, job.model(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    folder = f"{job.folder}/fsdp2"
    state, optim = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optim": optim}, checkpoint_id=folder)
    found = {
        "same": job.verify(model, checkpoint=folder),
        "whole": job.verify(job.model(), checkpoint=folder),
        "whole_full": job.verify(job.model(), checkpoint=folder, replicas="full"),
        "experts": job.verify(with_expert_parallel(job), checkpoint=folder),
        "columns": job.verify(by_columns(job), checkpoint=folder),
    }
    dcp.save(by_columns(job).state_dict(), checkpoint_id=f"{job.folder}/columns")
    found["saved_by_columns"] = job.verify(model, checkpoint=f"{job.folder}/columns")
    if job.rank == job.world - 1:
        bits_of(local(model.model.layers[1].mlp.experts.gate_up_proj))[0, 2, 3] ^= 1
    found["damaged"] = job.verify(model, checkpoint=folder)
    if job.rank == 0:
        next(iter(sorted(Path(folder).glob("__1_*.distcp")))).unlink()
    dist.barrier()
    found["without_a_file"] = job.verify(job.model(), checkpoint=folder)
    return found


def by_columns(job):
    """Every tensor of at least two dimensions in shards of its second one."""
    model, mesh = job.model(), job.mesh(dp=job.world)
    for module in model.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            if value.dim() > 1:
                setattr(module, name, nn.Parameter(distribute_tensor(value.detach(), mesh, [Shard(1)])))
    return model


@scenario
def loaded_with_tensor_parallelism(job):
    """What Transformers itself makes of `tp_plan="auto"`: it cuts the stored tensors before it converts them."""
    if job.world != 2:
        return {}
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.loaded_models import saved
    from support.shrink import quiet
    from weights.types import candidates

    found = {}
    for name in ("mixtral", "inkling2_text", "hrm_text"):
        config, kind = next(iter(candidates(name)))
        folder = job.folder / "tp" / name
        if job.rank == 0:
            saved(folder, config, kind)
        dist.barrier()
        with quiet():
            model = kind.from_pretrained(folder, tp_plan="auto")
        found[name] = job.verify(model, checkpoint=folder)
    return found


@scenario
def a_rank_that_never_calls(job):
    """Must be the last: the absent rank does not take part in what comes after."""
    if job.rank == 1:
        time.sleep(8)
        return {"verdict": "absent"}
    return job.verify(job.model(), rank_timeout=3)


def main() -> None:
    folder, checkpoint, rank, world = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))  # as torchrun does
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )
    job = Job(folder, checkpoint, rank, world)
    for name, function in SCENARIOS.items():
        try:
            outcome = function(job)
        except Exception:
            outcome = {"crash": traceback.format_exc()}
        (folder / f"{name}.{rank}.json").write_text(json.dumps(outcome))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
