"""Union volumes against brute force, and the coverage of stored tensors through rearrangements and arithmetic."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlint.weights.coverage import SourceCoverage, live_volume
from shardlint.weights.symbolic import volume
from shardlint.weights.symbolic.tensor import SymbolicTensor
from shardlint.weights.symbolic.volume import canonical, joined, lattice_volume, union_volume


@st.composite
def box_lists(draw):
    rank = draw(st.integers(1, 3))
    one = st.tuples(
        st.lists(st.integers(-4, 8), min_size=rank, max_size=rank),
        st.lists(st.integers(0, 5), min_size=rank, max_size=rank),
    )
    return draw(st.lists(one, max_size=8))


@given(box_lists())
def test_union_of_boxes_against_brute_force(boxes):
    points = {
        point
        for origin, sizes in boxes
        for point in itertools.product(*(range(low, low + size) for low, size in zip(origin, sizes, strict=True)))
    }
    assert union_volume(boxes) == len(points)


def test_many_boxes_in_a_row_are_fast_and_exact():
    boxes = [((index, 0, 0), (1, 7, 9)) for index in range(20_000)]
    assert union_volume(boxes) == 20_000 * 63
    assert union_volume([*boxes, ((5, 0, 0), (10, 8, 2))]) == 20_000 * 63 + 20


lattices = st.tuples(st.integers(0, 60), st.lists(st.tuples(st.integers(1, 5), st.integers(-9, 30)), max_size=3))


def points_of(offset, digits) -> set[int]:
    found = {offset}
    for size, stride in digits:
        found = {point + step * stride for point in found for step in range(size)}
    return found


@given(lattices)
def test_canonical_form_is_the_same_set(lattice):
    assert points_of(*canonical(*lattice)) == points_of(*lattice)


@given(st.lists(lattices, max_size=6), st.sampled_from(["usual", "bitmap"]))
@settings(max_examples=200)
def test_union_of_lattices_against_brute_force(found, road):
    expected = set().union(*(points_of(*lattice) for lattice in found)) if found else set()
    with pytest.MonkeyPatch.context() as patch:
        if road == "bitmap":
            patch.setattr(volume, "MAX_RUNS", 0)
        assert lattice_volume([canonical(*lattice) for lattice in found]) == len(expected)
    again = joined(canonical(*lattice) for lattice in found)
    assert set().union(*(points_of(*lattice) for lattice in again)) == expected


def test_unknown_beyond_the_memory_bound(monkeypatch):
    monkeypatch.setattr(volume, "MAX_RUNS", 1)
    monkeypatch.setattr(volume, "MAX_CELLS", 10)
    assert lattice_volume([(0, ((3, 2),)), (1, ((3, 5),))]) is None


def test_experts_and_transposes_become_one_lattice():
    whole = SymbolicTensor.leaf("w", (64, 30, 20), torch.float32)
    found = SourceCoverage()
    for expert in range(64):
        found.add(whole[expert].t().blocks)
    found.join()
    assert found.lattices["w"] == [(0, ((64 * 600, 1),))]
    assert found.volume("w") == 64 * 600
    assert found.volume("other") == 0


def test_arithmetic_is_followed_to_what_it_reads():
    weight = SymbolicTensor.leaf("w", (256, 384), torch.float32)
    scale = SymbolicTensor.leaf("s", (2, 3), torch.float32)
    product = (weight.reshape(2, 128, 3, 128) * scale.reshape(2, 1, 3, 1)).reshape(256, 384)
    found = SourceCoverage()
    found.add(product[:128].blocks)
    assert (found.volume("w"), found.volume("s")) == (128 * 384, 3)
    found.add(product[128:].t().blocks)
    assert (found.volume("w"), found.volume("s")) == (256 * 384, 6)
    assert live_volume(product.blocks) == 256 * 384


def test_pieces_that_cannot_be_followed_are_unknown_not_complete(monkeypatch):
    monkeypatch.setattr("shardlint.weights.coverage.MAX_NODE_RUNS", 4)
    left, right = (SymbolicTensor.leaf(key, (64, 64), torch.float32) for key in "ab")
    found = SourceCoverage()
    found.add((left * right)[:, :3].blocks)
    assert found.volume("a") is None
