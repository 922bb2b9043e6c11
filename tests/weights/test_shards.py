"""Local shards against real DTensors on meshes of a fake process group, and against brute force."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from shardlint.boxes import STRIDED, Placement, replay
from shardlint.weights.compare.live_tensor import Unreadable
from shardlint.weights.shards import ExternalShard, external_shard, localised, shards_of
from shardlint.weights.symbolic.blocks import Block
from shardlint.weights.symbolic.tensor import SymbolicTensor

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@contextlib.contextmanager
def rank_of(rank: int, world: int) -> Iterator[None]:
    """Be one rank of a job that communicates with nobody."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def values_of(region: SymbolicTensor, source: torch.Tensor) -> torch.Tensor:
    """The values of a symbolic tensor over one source, without the product's reader."""
    out = torch.full(tuple(region.shape), -1)
    for block in region.blocks:
        assert isinstance(block, Block)
        index = torch.tensor([block.offset])
        for size, stride in block.digits:
            index = (index[:, None] + torch.arange(size) * stride).reshape(-1)
        where = tuple(slice(low, low + size) for low, size in zip(block.lo, block.size, strict=True))
        out[where] = source.reshape(-1)[index].reshape(block.size)
    return out


@st.composite
def layouts(draw):
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    mesh = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    kinds = st.one_of(st.just(Replicate()), st.integers(0, len(shape) - 1).map(Shard))
    return shape, mesh, [draw(kinds) for _ in mesh]


@given(layouts(), st.data())
@settings(max_examples=25, deadline=None)
def test_random_layouts_against_real_shards(layout, data):
    shape, mesh_shape, placements = layout
    world = int(torch.tensor(mesh_shape).prod())
    full = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
    with rank_of(data.draw(st.integers(0, world - 1)), world):
        mesh = init_device_mesh("cpu", tuple(mesh_shape))
        tensor = distribute_tensor(full, mesh, placements, src_data_rank=None)
        model = torch.nn.Module()
        model.register_buffer("w", tensor)
        (shard,) = shards_of(model)
        region = localised(SymbolicTensor.leaf("w", shape, torch.int64), shard.ranges)
        assert torch.equal(values_of(region, full), tensor.to_local())
        assert shard.logical == tuple(tensor.to_local().shape)
        assert shard.global_shape == tuple(shape)


@given(st.integers(1, 24), st.integers(1, 4), st.integers(1, 4), st.data())
def test_strided_shards_against_brute_force(size, ranks, factor, data):
    """Each of `factor` parts cut into as many pieces as there are ranks; a rank holds its piece of every part."""
    rank = data.draw(st.integers(0, ranks - 1))
    full = torch.arange(size * 3).reshape(size, 3)
    held = [part.chunk(ranks)[rank] for part in full.chunk(factor) if rank < len(part.chunk(ranks))]
    ranges = replay((size, 3), (ranks,), (rank,), (Placement(STRIDED, 0, factor, ""),))
    region = localised(SymbolicTensor.leaf("w", (size, 3), torch.int64), ranges)
    expected = torch.cat(held) if held else full[:0]
    assert torch.equal(values_of(region, full), expected)


def test_a_local_tensor_of_another_shape_is_refused():
    with rank_of(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        tensor = distribute_tensor(torch.zeros(8, 2), mesh, [Shard(0)], src_data_rank=None)
        tensor._local_tensor = torch.zeros(3, 2)
        model = torch.nn.Module()
        model.register_buffer("w", tensor)
        with pytest.raises(Unreadable, match=r"give the local shape \[4, 2\], its storage has \[3, 2\]"):
            shards_of(model)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"offsets": (0,)}, "different numbers of dimensions"),
        ({"offsets": (8, 0)}, "does not lie in"),
        ({"logical_shape": (9, 4)}, "does not lie in"),
        ({"offsets": (-1, 0)}, "does not lie in"),
    ],
)
def test_external_shards_that_contradict_themselves(change, text):
    good = {"name": "w", "local": torch.zeros(4, 4), "global_shape": (10, 4), "offsets": (2, 0)}
    assert external_shard(ExternalShard(**good)).ranges == (((2, 4),), ((0, 4),))
    with pytest.raises(Unreadable, match=text):
        external_shard(ExternalShard(**good | change))
