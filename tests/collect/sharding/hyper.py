"""Stand-ins of the shape that HyperParallel's HSDP has: schedulers, states, managed parameters."""

from types import SimpleNamespace

import torch
from torch import nn


class Shard:
    def __init__(self, dim):
        self.dim = dim

    def __repr__(self):
        return f"Shard(dim={self.dim})"

    def is_shard(self):
        return True


class Replicate:
    def __repr__(self):
        return "Replicate()"

    def is_shard(self):
        return False

    def is_replicate(self):
        return True


class Sharded(nn.Parameter):
    """A parameter of which this rank holds the first half, as the framework's distributed tensor says."""

    def to_local(self):
        return self.data[: self.shape[0] // 2]


def source(*axes, placements=()):
    return SimpleNamespace(mesh=SimpleNamespace(mesh_dim_names=axes), placements=placements)


def managed(parameter, fqn=None, *, shard_info=None, size=None):
    fields = {"sharded_param": parameter}
    if fqn is not None:
        fields["_param_fqn"] = fqn
    if shard_info is not None:
        fields["source_shard_info"] = shard_info
    if size is not None:
        fields["_orig_size"] = torch.Size(size)
    return SimpleNamespace(**fields)


def schedule(module, params, forward=(), backward=()):
    state = SimpleNamespace(hsdp_params=list(params))
    module.hsdp_scheduler = SimpleNamespace(
        hsdp_state=state, forward_prefetch_cells=list(forward), backward_prefetch_cells=list(backward)
    )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.Linear(4, 4, bias=False)
        self.experts = nn.Module()
        self.experts.weight = Sharded(torch.zeros(8, 4))


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.layers = nn.ModuleList(Block() for _ in range(layers))


def expert_source():
    return source("dp", "ep", placements=(Replicate(), Shard(0)))


def sound_model():
    """Every block and every block's experts scheduled by themselves, the embedding by the root."""
    model = Model()
    for index, block in enumerate(model.layers):
        name = f"layers.{index}"
        schedule(block, [managed(block.attention.weight, f"{name}.attention.weight", shard_info=source("dp"))])
        experts = managed(block.experts.weight, f"{name}.experts.weight", shard_info=expert_source(), size=(16, 4))
        schedule(block.experts, [experts])
    schedule(model, [managed(model.embed.weight, "embed.weight")])
    return model
