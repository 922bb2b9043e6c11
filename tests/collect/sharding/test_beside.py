"""Plain local tensors with their layout beside them: shapes, ownership and weights are those of the whole."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from collect.sharding.hyper import Replicate, Shard, managed, schedule
from shardlint.collect.model import model_facts
from shardlint.collect.sharding import sharding_facts
from shardlint.introspect.walk import walk
from shardlint.weights.compare.live_tensor import Unreadable
from shardlint.weights.shards import shards_of


class Mesh:
    mesh = torch.arange(2)
    mesh_dim_names = ("tp",)

    def __init__(self, place=0):
        self.place = place

    def get_coordinate(self):
        return (self.place,)


class Strided:
    dim, split_factor = 0, 2


def part(rows=4):
    model = nn.Module()
    model.w = nn.Parameter(torch.arange(rows * 5.0).reshape(rows, 5))
    return model


def by_attribute(name):
    def put(model, *placements, shape=(8, 5), place=0):
        spec = SimpleNamespace(mesh=Mesh(place), placements=placements, tensor_shape=shape)
        setattr(model.w, name, spec)
        return model

    return put


def by_unit(model, *placements, shape=(8, 5), place=0):
    info = SimpleNamespace(mesh=Mesh(place), placements=placements)
    schedule(model, [managed(model.w, "w", shard_info=info, size=shape)])
    return model


@pytest.mark.parametrize("put", [by_attribute("_sharding_spec"), by_attribute("target_layout"), by_unit])
def test_the_shape_is_that_of_the_whole(put):
    model = put(part(), Shard(0), place=1)
    (tensor,) = model_facts(walk(model)).tensors
    assert (tensor.shape, tensor.local_shape) == ((8, 5), (4, 5))
    assert tensor.layout.mesh_axes == ("tp",)
    (shard,) = shards_of(model)
    assert (shard.global_shape, shard.ranges) == ((8, 5), (((4, 4),), ((0, 5),)))
    (record,) = sharding_facts(walk(model)).parameters
    assert sharding_facts(walk(model)).layout_of(record).global_shape == (8, 5)


def test_a_strided_part_holds_the_rows_that_it_says():
    (shard,) = shards_of(by_unit(part(), Strided()))
    assert shard.ranges[0] == ((0, 2), (4, 2))


@pytest.mark.parametrize(
    "placements", [(Replicate(),), (Shard(1),), (type("RaggedShard", (), {"local_units": (1, 3)})(),), ()]
)
def test_a_part_that_nothing_places_is_refused(placements):
    with pytest.raises((Unreadable, ValueError)):
        shards_of(by_unit(part(), *placements))


def test_a_whole_tensor_stays_what_it_is():
    model = by_unit(part(8), Replicate())
    (tensor,) = model_facts(walk(model)).tensors
    assert (tensor.shape, tensor.local_shape) == ((8, 5), None)


def test_the_shape_of_a_scalar_is_kept():
    model = part()
    schedule(model, [managed(model.w, "w", size=())])
    sharding = sharding_facts(walk(model))
    assert sharding.layout_of(sharding.parameters[0]).global_shape == ()


def test_a_scheduler_that_is_a_module_is_found():
    class Scheduler(nn.Module):
        def __init__(self, params):
            super().__init__()
            self.hsdp_state = SimpleNamespace(hsdp_params=params)
            self.forward_prefetch_cells = self.backward_prefetch_cells = ()

    model = part()
    model.hsdp_scheduler = Scheduler([managed(model.w, "w")])
    assert [unit.kind for unit in sharding_facts(walk(model)).units] == ["hyperparallel"]
