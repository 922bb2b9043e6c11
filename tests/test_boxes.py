"""Boxes against an independent truth: an array of indices that is cut as torch cuts tensors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlint.boxes import (
    OTHER,
    PARTIAL,
    REPLICATE,
    SHARD,
    STRIDED,
    Box,
    Placement,
    boxes,
    chunk,
    coordinates,
    flat_boxes,
    product,
    rechunk,
    replay,
    shape_of,
)


@st.composite
def layouts(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    placements = []
    for _ in mesh:
        kind = draw(st.sampled_from([SHARD, STRIDED, REPLICATE, PARTIAL]))
        dim = draw(st.integers(-len(shape), len(shape) - 1)) if kind in (SHARD, STRIDED) else None
        placements.append(Placement(kind, dim, draw(st.integers(1, 4)) if kind == STRIDED else None))
    return shape, mesh, tuple(placements)


def torch_chunk(tensor, pieces, index, dim):
    found = torch.chunk(tensor, pieces, dim=dim)
    return found[index] if index < len(found) else tensor.narrow(dim, 0, 0)


def truth(shape, mesh, coordinate, placements):
    """Cut a tensor of flat indices the way the placements say, with torch itself."""
    tensor = torch.arange(math.prod(shape)).reshape(shape)
    for pieces, index, placement in zip(mesh, coordinate, placements, strict=True):
        if placement.kind == SHARD:
            tensor = torch_chunk(tensor, pieces, index, placement.dim)
        elif placement.kind == STRIDED:
            parts = [
                torch_chunk(tensor, placement.split_factor, i, placement.dim) for i in range(placement.split_factor)
            ]
            tensor = torch.cat([torch_chunk(part, pieces, index, placement.dim) for part in parts], dim=placement.dim)
    return tensor


def elements(shape, found):
    whole = torch.arange(math.prod(shape)).reshape(shape)
    picked = [whole[tuple(slice(o, o + s) for o, s in zip(b.offsets, b.sizes, strict=True))].reshape(-1) for b in found]
    return torch.cat(picked).tolist() if picked else []


@given(layouts())
def test_boxes_hold_exactly_the_elements_that_torch_would_give_the_rank(layout):
    shape, mesh, placements = layout
    for coordinate in coordinates(mesh):
        expected = truth(shape, mesh, coordinate, placements)
        found = boxes(shape, mesh, coordinate, placements)
        assert sorted(elements(shape, found)) == sorted(expected.reshape(-1).tolist())
        assert sum(box.numel for box in found) == expected.numel()


@given(layouts())
def test_ranges_keep_the_order_and_shape_of_the_local_tensor(layout):
    shape, mesh, placements = layout
    for coordinate in coordinates(mesh):
        dims = replay(shape, mesh, coordinate, placements)
        expected = truth(shape, mesh, coordinate, placements)
        assert shape_of(dims) == tuple(expected.shape)
        whole = torch.arange(math.prod(shape)).reshape(shape)
        for dim, ranges in enumerate(dims):
            index = [i for start, length in ranges for i in range(start, start + length)]
            whole = whole.index_select(dim, torch.tensor(index, dtype=torch.long))
        assert torch.equal(whole, expected)


@given(layouts())
def test_sharded_axes_cover_the_tensor_once_per_replica(layout):
    shape, mesh, placements = layout
    copies = math.prod(size for size, item in zip(mesh, placements, strict=True) if not item.is_shard)
    held = [e for c in coordinates(mesh) for e in elements(shape, boxes(shape, mesh, c, placements))]
    assert sorted(held) == sorted(list(range(math.prod(shape))) * copies)


@given(layouts(), st.integers(1, 4), st.data())
def test_rechunk_is_a_chunk_of_the_local_tensor(layout, pieces, data):
    shape, mesh, placements = layout
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    for coordinate in coordinates(mesh):
        local = truth(shape, mesh, coordinate, placements)
        for index in range(pieces):
            dims = rechunk(replay(shape, mesh, coordinate, placements), dim, pieces, index)
            assert sorted(elements(shape, product(dims))) == sorted(
                torch_chunk(local, pieces, index, dim).reshape(-1).tolist()
            )


@given(st.lists(st.integers(1, 5), max_size=4), st.data())
def test_flat_boxes_hold_the_flat_range_in_order(shape, data):
    total = math.prod(shape)
    start = data.draw(st.integers(0, total))
    length = data.draw(st.integers(0, total - start))
    found = flat_boxes(shape, start, length)
    assert elements(tuple(shape), found) == list(range(start, start + length))
    assert len(found) <= max(1, 2 * len(shape) - 1)


def test_chunk_rounds_up_and_leaves_the_last_pieces_empty():
    assert [chunk([(0, 5)], 4, i) for i in range(4)] == [((0, 2),), ((2, 2),), ((4, 1),), ()]


def test_a_packed_shard_gives_several_boxes():
    packed = Placement(STRIDED, 0, 2)
    assert [box.text() for box in boxes((8, 3), (2,), (1,), (packed,))] == ["[2:4, 0:3]", "[6:8, 0:3]"]


def test_a_scalar_is_one_box_and_an_empty_tensor_none():
    assert boxes((), (2,), (1,), (Placement(REPLICATE),)) == (Box((), ()),)
    assert boxes((0, 4), (2,), (1,), (Placement(REPLICATE),)) == ()


def test_overlap_needs_a_shared_element():
    assert Box((0, 0), (2, 2)).overlaps(Box((1, 1), (2, 2)))
    assert not Box((0, 0), (2, 2)).overlaps(Box((2, 0), (2, 2)))


def test_what_cannot_be_told_is_refused():
    with pytest.raises(ValueError, match="cannot tell what the placement Ragged"):
        boxes((4,), (2,), (0,), (Placement(OTHER, text="Ragged"),))
    with pytest.raises(ValueError, match="shards dim 2 of a tensor of 1 dims"):
        boxes((4,), (2,), (0,), (Placement(SHARD, 2, text="S"),))
    with pytest.raises(ValueError, match="zip"):
        boxes((4,), (2,), (0, 0), (Placement(SHARD, 0),))
    with pytest.raises(ValueError, match="not all within a tensor of shape"):
        flat_boxes((2, 2), 3, 2)
