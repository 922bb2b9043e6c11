"""Positions against index tensors; conversions there and back, random chains against what they do to values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlint.loading.recorded_conversions import run_stage
from shardlint.weights.positions import origin_at, unravelled, wrong_position
from shardlint.weights.reverse import reverted
from shardlint.weights.symbolic.tensor import SymbolicTensor

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4).map(tuple)
QUIET = settings(max_examples=150, deadline=None)


def _step(tensor, name, a, b):
    """One rearrangement that keeps the number of elements."""
    first, second = a % tensor.dim(), b % tensor.dim()
    if name == "transpose":
        return tensor.transpose(first, second)
    if name == "flip":
        return tensor.flip(first)
    if name == "flatten":
        return tensor.reshape(-1)
    if name == "split":
        size = tensor.shape[first]
        return tensor if size % 2 else tensor.unflatten(first, (2, size // 2))
    parts = tensor.chunk(2, first)
    return torch.cat(list(parts)[::-1], first)


STEPS = st.lists(
    st.tuples(st.sampled_from(["transpose", "flip", "flatten", "split", "turn"]), st.integers(0, 3), st.integers(0, 3)),
    max_size=5,
)


@QUIET
@given(SHAPES, STEPS)
def test_the_first_wrong_position_is_that_of_the_index_tensor(shape, steps):
    symbolic = SymbolicTensor.leaf("key", shape, torch.float32)
    indices = torch.arange(math.prod(shape)).reshape(shape)
    for step in steps:
        symbolic, indices = _step(symbolic, *step), _step(indices, *step)
    symbolic, flat = symbolic.reshape(shape), indices.reshape(-1)
    differing = (flat != torch.arange(len(flat))).nonzero()
    expected = int(differing[0]) if len(differing) else None
    assert wrong_position("key", shape, symbolic) == expected
    for at in range(len(flat)):
        assert origin_at(symbolic, at).flat == flat[at]
    assert wrong_position("other", shape, symbolic) == 0


def test_casts_do_not_count_and_arithmetic_does():
    leaf = SymbolicTensor.leaf("key", (2, 3), torch.float32)
    assert wrong_position("key", (2, 3), leaf.to(torch.bfloat16)) is None
    assert wrong_position("key", (2, 3), leaf * 2) == 0
    assert origin_at(leaf * 2, 4).computed
    assert wrong_position("key", (3, 2), leaf) == 0
    joined = torch.cat([leaf[:1], SymbolicTensor.constant(0, (1, 3), torch.float32)])
    assert wrong_position("key", (2, 3), joined) == 3
    assert origin_at(joined, 4).source == 0
    with pytest.raises(IndexError):
        origin_at(SymbolicTensor([], (2,), torch.float32), 1)


def _stage(number, kind, dim, other):
    """One recorded stage from the name `w<number>` to the next, and of how many conversions it is."""
    from transformers.core_model_loading import Chunk, Concatenate, Interleave, Transpose, WeightConverter

    here, there = f"w{number}", f"w{number + 1}"
    halves = [f"left{number}", f"right{number}"]
    if kind == "transpose":
        return [[WeightConverter(here, there, [Transpose(0, 1)])]]
    if kind == "interleave":
        return [[WeightConverter(here, there, [Interleave(dim)])]]
    cut = [WeightConverter(here, halves, [Chunk(dim)])]
    return [cut, [WeightConverter(halves, there, [Concatenate(other)])]]


KINDS = st.tuples(st.sampled_from(["transpose", "interleave", "move"]), st.integers(0, 1), st.integers(0, 1))


def _there_and_back(stages, tensor, model=None):
    tensors = {"a.w0": tensor}
    for stage in stages:
        tensors = {name: made.tensor for name, made in run_stage(stage, tensors, model).items()}
    (there,) = tensors.values()
    for stage in stages[::-1]:
        tensors = reverted(model, tensors, stage)
    return there, tensors


@QUIET
@given(st.lists(KINDS, min_size=1, max_size=5))
def test_conversions_there_and_back_are_the_identity(kinds):
    stages = [stage for number, kind in enumerate(kinds) for stage in _stage(number, *kind)]
    shape = (2 ** (len(kinds) + 1), 3 * 2 ** (len(kinds) + 1))
    symbolic, back = _there_and_back(stages, SymbolicTensor.leaf("a.w0", shape, torch.float32))
    indices = torch.arange(math.prod(shape)).reshape(shape)
    real, really = _there_and_back(stages, indices)
    assert list(back) == list(really) == ["a.w0"]
    assert torch.equal(really["a.w0"], indices)
    assert wrong_position("a.w0", shape, back["a.w0"]) is None
    assert tuple(symbolic.shape) == tuple(real.shape)
    for at in range(0, real.numel(), max(1, real.numel() // 30)):
        assert origin_at(symbolic, at).flat == real[unravelled(at, tuple(real.shape))]


@QUIET
@given(st.lists(KINDS, min_size=1, max_size=3), st.data())
def test_a_reverse_of_another_chain_is_caught_where_it_first_errs(kinds, data):
    """Stages reversed with other dimensions than they ran with: the symbolic verdict is that of real values."""
    other = [(kind, *data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))) for kind, _, _ in kinds]
    stages = [stage for number, kind in enumerate(kinds) for stage in _stage(number, *kind)]
    wrong = [stage for number, kind in enumerate(other) for stage in _stage(number, *kind)]
    shape = (16, 16)
    symbolic = _crossed(stages, wrong, SymbolicTensor.leaf("a.w0", shape, torch.float32))
    real = _crossed(stages, wrong, torch.arange(256).reshape(shape))
    if tuple(real.shape) != shape:
        assert tuple(symbolic.shape) == tuple(real.shape)
        return
    differing = (real.reshape(-1) != torch.arange(256)).nonzero()
    assert wrong_position("a.w0", shape, symbolic) == (int(differing[0]) if len(differing) else None)


def _crossed(stages, wrong, tensor):
    tensors = {"a.w0": tensor}
    for stage in stages:
        tensors = {name: made.tensor for name, made in run_stage(stage, tensors, None).items()}
    for stage in wrong[::-1]:
        tensors = reverted(None, tensors, stage)
    return tensors["a.w0"]
