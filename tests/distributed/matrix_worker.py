"""
One rank of a job that lints architectures in layouts at moments, and architectures with one fault each.

    python matrix_worker.py FOLDER RANK WORLD [sound/ARCHITECTURE/LAYOUT | fault/ARCHITECTURE/FAULT]...
"""

import datetime
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from shardlint.api import lint

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def of_transformers(kind, **more):
    import transformers

    return getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**SIZES | more))


def blocks():
    return nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.LayerNorm(16)) for _ in range(3)])


def vision():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )


ARCHITECTURES = {
    "blocks": (blocks, lambda: torch.ones(2, 16)),
    "vision": (vision, lambda: torch.rand(2, 3, 8, 8)),
    "llama": (lambda: of_transformers("Llama", num_key_value_heads=4), None),
    "qwen2": (lambda: of_transformers("Qwen2", num_key_value_heads=4), None),
    "gpt_neox": (lambda: of_transformers("GPTNeoX"), None),
}


def layers_of(model):
    for path in ("model.layers", "gpt_neox.layers"):
        try:
            return list(model.get_submodule(path))
        except AttributeError:
            continue
    return list(model.children())


def fsdp2(model, mesh, **options):
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


LAYOUTS = {
    "fsdp2": lambda model, world: fsdp2(model, init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))),
    "hsdp": lambda model, world: fsdp2(
        model, init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    ),
    "no-reshard": lambda model, world: fsdp2(
        model, init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",)), reshard_after_forward=False
    ),
    "ddp": lambda model, world: nn.parallel.DistributedDataParallel(model),
    "fsdp1-flat": lambda model, world: FullyShardedDataParallel(model, device_id=torch.device("cpu")),
    "fsdp1-originals": lambda model, world: FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=True
    ),
}


def loss_of(model, inputs):
    if inputs is None:
        return model(input_ids=torch.ones(2, 8, dtype=torch.long)).logits.float().pow(2).mean()
    return model(inputs()).pow(2).mean()


def told(model, optimizer, **more):
    report = lint(model, optimizer=optimizer, config=False, rank_timeout=60.0, **more)
    return [
        [item.code, item.subject, list(item.ranks), item.message]
        for item in report.findings
        if item.severity.value != "info"
    ]


def sound(architecture, layout, world):
    """What is said before, within and after a step of a model with nothing wrong."""
    torch.manual_seed(0)
    build, inputs = ARCHITECTURES[architecture]
    model = LAYOUTS[layout](build(), world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    out = {"before": told(model, optimizer)}
    loss = loss_of(model, inputs)
    out["within"] = told(model, optimizer)
    loss.backward()
    optimizer.step()
    out["after"] = told(model, optimizer)
    return out


def faulty(architecture, fault, rank, world):
    """What is said of a model with one fault, most of them on rank 1 alone."""
    torch.manual_seed(0)
    model, odd = ARCHITECTURES[architecture][0](), rank == 1
    layers = layers_of(model)
    if fault == "nan" and odd:
        next(layers[0].parameters()).data.fill_(float("nan"))
    if fault == "buffer" and odd:
        layers[0].register_buffer("more", torch.zeros(2))
    if fault == "eval" and odd:
        layers[0].eval()
    if fault == "frozen" and odd:
        next(layers[1].parameters()).requires_grad_(False)
    model = LAYOUTS["fsdp2"](model, world)
    if fault == "divisor":
        layers[1].set_gradient_divide_factor(1.0)
    if fault == "late":
        layers[0].register_parameter("late", nn.Parameter(torch.ones(4)))
    rate = 1e-3 * (1 + odd) if fault == "rate" else 1e-3
    return {"before": told(model, torch.optim.AdamW(model.parameters(), lr=rate))}


def main():
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=limit)
    out = {}
    for case in sys.argv[4:]:
        kind, architecture, what = case.split("/")
        out[case] = sound(architecture, what, world) if kind == "sound" else faulty(architecture, what, rank, world)
    (folder / f"{rank}.json").write_text(json.dumps(out))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
