"""Models in the wrappers of torch.distributed: one rank, real objects."""

import warnings

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from shardlint.collect.model import model_facts
from shardlint.introspect.walk import walk


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.module = nn.Linear(4, 4)  # a real child with a wrapper's segment
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.module(self.embed(x)))


NAMES = ("embed.weight", "head.weight", "module.bias", "module.weight")


def names_of(facts):
    return tuple(sorted(name for tensor in facts.tensors for name in tensor.aliases))


def test_ddp(one_rank):
    facts = model_facts(walk(DistributedDataParallel(Net())))
    assert names_of(facts) == NAMES
    assert facts.qualified_type.endswith(".Net")
    (wrapper,) = facts.wrappers
    assert (wrapper.fqn, wrapper.kind) == ("", "ddp")
    assert wrapper.wrapped_type == facts.qualified_type
    assert [item.fqn for item in facts.modules] == ["", "embed", "module", "head"]


def test_ddp_of_a_compiled_model(one_rank):
    facts = model_facts(walk(DistributedDataParallel(torch.compile(Net()))))
    assert names_of(facts) == NAMES
    assert [item.kind for item in facts.wrappers] == ["ddp", "compile"]


@pytest.mark.parametrize("original", [True, False])
def test_fsdp1(one_rank, original):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(Net(), use_orig_params=original, device_id=torch.device("cpu"))
    facts = model_facts(walk(model))
    if original:
        assert names_of(facts) == NAMES
    else:
        assert len(facts.tensors) == 1  # the flat parameter
    assert [item.kind for item in facts.wrappers] == ["fsdp1"]
    assert {item.fqn for item in facts.modules} == {"", "embed", "module", "head"}


def test_fsdp2_keeps_names_and_the_authors_classes(one_rank):
    model = Net()
    fully_shard(model.module)
    fully_shard(model)
    facts = model_facts(walk(model))
    assert names_of(facts) == NAMES
    assert facts.wrappers == ()
    assert facts.qualified_type.endswith(".Net")
    assert {item.qualified_type for item in facts.modules if item.fqn == "module"} == {"torch.nn.modules.linear.Linear"}
    weight = facts.tensor_by_name()["module.weight"]
    assert (weight.shape, weight.local_shape) == ((4, 4), (4, 4))
    assert weight.layout.placements == ("Shard(dim=0)",)
    assert weight.layout.mesh_shape == (1,)


def test_dtensor_layout_on_a_named_mesh(one_rank):
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    model = nn.Linear(4, 6, bias=False)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Replicate(), Shard(1)]))
    (weight,) = model_facts(walk(model)).tensors
    assert weight.layout.mesh_axes == ("dp", "tp")
    assert weight.layout.mesh_shape == (1, 1)
    assert weight.layout.placements == ("Replicate()", "Shard(dim=1)")
    assert (weight.shape, weight.local_shape, weight.storage) == ((6, 4), (6, 4), 0)


def test_a_meta_dtensor_is_meta(one_rank):
    mesh = init_device_mesh("cpu", (1,))
    with torch.device("meta"):
        model = nn.Linear(4, 6, bias=False)
    fully_shard(model, mesh=mesh)
    (weight,) = model_facts(walk(model)).tensors
    assert weight.is_meta
    assert weight.storage is None
    assert weight.layout.mesh_axes == ()
