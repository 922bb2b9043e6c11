"""The symbolic tensor against real index tensors: every element must name the source element that torch puts there."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlint.weights.symbolic import blocks, radix
from shardlint.weights.symbolic.radix import Untrackable, extent, factor, normalise, split_flat, subrange
from shardlint.weights.symbolic.rearrange import covers_shape
from shardlint.weights.symbolic.tensor import SymbolicTensor

PRIMES = 10_000_019


def positions(radix) -> list[int]:
    values = [0]
    for size, stride in radix:
        values = [value + digit * stride for value in values for digit in range(size)]
    return values


radices = st.lists(st.tuples(st.integers(1, 5), st.integers(-7, 40)), max_size=4).map(normalise)


@given(radices, st.data())
def test_subrange_keeps_every_offset(radix, data):
    total = extent(radix)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    found = []
    at = start
    for first, cut, offset in subrange(radix, start, stop):
        assert first == at
        found += [offset + value for value in positions(cut)]
        at += extent(cut)
    assert found == positions(radix)[start:stop]


@given(radices, st.integers(1, 30))
def test_factor_is_outer_times_inner(radix, inner):
    parts = factor(radix, inner)
    if parts:
        assert extent(parts[1]) == inner
        assert positions((*parts[0], *parts[1])) == positions(radix)


@given(radices, st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_split_flat_keeps_every_offset(radix, dims, data):
    total = math.prod(dims)
    count = extent(radix)
    if count > total:
        return
    start = data.draw(st.integers(0, total - count))
    grid = np.full(dims, PRIMES)
    for origin, lists, offset in split_flat(start, radix, dims):
        box = np.array([offset])
        for item in lists:
            box = (box[:, None] + np.array(positions(item))).reshape(-1)
        sizes = [extent(item) for item in lists]
        where = tuple(slice(low, low + size) for low, size in zip(origin, sizes, strict=True))
        assert (grid[where] == PRIMES).all(), "two boxes overlap"
        grid[where] = box.reshape(sizes)
    assert grid.reshape(-1)[start : start + count].tolist() == positions(radix)


def evaluated(tensor: SymbolicTensor, sources: dict[str, torch.Tensor]) -> torch.Tensor:
    """The index tensor that a symbolic tensor stands for, written element by element, without the product's code."""
    out = torch.full(tuple(tensor.shape), -1, dtype=torch.int64)
    for block in tensor.blocks:
        index = np.array([block.offset])
        for axis in block.axes:
            index = (index[:, None] + np.array(positions(axis))).reshape(-1)
        if block.source is None:
            values = torch.full(block.size, block.fill, dtype=torch.int64)
        else:
            values = sources[block.source].reshape(-1)[torch.from_numpy(index)].reshape(block.size)
        where = tuple(slice(low, low + size) for low, size in zip(block.lo, block.size, strict=True))
        assert bool((out[where] == -1).all()), "two boxes overlap"
        out[where] = values
    assert covers_shape(tensor)
    return out


def leaves(shapes: list[tuple[int, ...]]):
    real, symbolic, start = {}, {}, 1
    for number, shape in enumerate(shapes):
        count = math.prod(shape)
        real[f"w{number}"] = torch.arange(start, start + count).reshape(shape)
        symbolic[f"w{number}"] = SymbolicTensor.leaf(f"w{number}", shape, torch.int64)
        start += count
    return real, symbolic


def divisors(count: int) -> list[int]:
    return [value for value in range(1, count + 1) if count % value == 0]


@st.composite
def any_shape(draw, total: int) -> list[int]:
    shape = []
    while total > 1 and len(shape) < 3:
        shape.append(draw(st.sampled_from(divisors(total))))
        total //= shape[-1]
    return [*shape, total]


def draw_operation(data, shape):
    rank = len(shape)
    dim = data.draw(st.integers(-rank, rank - 1)) if rank else 0
    size = shape[dim] if rank else 0
    kinds = ["reshape", "cat_self", "stack", "unsqueeze", "flatten", "pad", "expand"]
    if rank:
        kinds += ["permute", "flip", "narrow", "chunk", "split", "select", "slice", "roll", "list", "repeat"]
        kinds += ["transpose", "cat_other", "movedim", "repeat_interleave", "squeeze", "unflatten"]
        kinds += ["tensor_split", "unbind"]
    kind = data.draw(st.sampled_from(kinds))
    if kind == "reshape":
        new = data.draw(any_shape(math.prod(shape)))
        return lambda x: x.reshape(new)
    if kind == "cat_self":
        return lambda x: torch.cat([x, x], dim) if rank else torch.stack([x, x])
    if kind == "cat_other":
        return lambda x: torch.cat([x, x.flip(dim), x.narrow(dim, 0, size // 2)], dim)
    if kind == "stack":
        at = data.draw(st.integers(0, rank))
        return lambda x: torch.stack([x, x], dim=at)
    if kind == "unsqueeze":
        at = data.draw(st.integers(-rank - 1, rank))
        return lambda x: x.unsqueeze(at)
    if kind == "squeeze":
        return lambda x: x.squeeze(dim)
    if kind == "flatten":
        return lambda x: x.flatten()
    if kind == "pad":
        amounts = data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=2)) if rank else []
        return lambda x: torch.nn.functional.pad(x, amounts, value=-5) if rank else x.clone()
    if kind == "expand":
        return lambda x: x.unsqueeze(0).expand(3, *shape).contiguous()
    if kind == "permute":
        order = data.draw(st.permutations(range(rank)))
        return lambda x: x.permute(*order).contiguous()
    if kind == "movedim":
        to = data.draw(st.integers(-rank, rank - 1))
        return lambda x: x.movedim(dim, to)
    if kind == "transpose":
        to = data.draw(st.integers(-rank, rank - 1))
        return lambda x: x.transpose(dim, to)
    if kind == "flip":
        return lambda x: x.flip(dim)
    if kind == "narrow":
        start = data.draw(st.integers(0, size - 1))
        length = data.draw(st.integers(1, size - start))
        return lambda x: x.narrow(dim, start, length)
    if kind in ("chunk", "tensor_split"):
        parts = data.draw(st.integers(1, min(size, 4)))
        return lambda x: torch.cat(getattr(x, kind)(parts, dim)[::-1], dim)
    if kind == "split":
        return lambda x: torch.cat(
            [x.split(max(1, size // 2), dim)[-1], x.split([size - size // 2, size // 2], dim)[0]], dim
        )
    if kind == "select":
        index = data.draw(st.integers(-size, size - 1))
        return lambda x: x.select(dim, index)
    if kind == "unbind":
        return lambda x: x.unbind(dim)[-1]
    if kind == "slice":
        start, step = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, 3))
        return lambda x: x.movedim(dim, 0)[start::step, ...]
    if kind == "roll":
        shift = data.draw(st.integers(-5, 5))
        return lambda x: x.roll(shift, dim)
    if kind == "list":
        chosen = data.draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=5))
        return lambda x: x.movedim(dim, 0)[chosen]
    if kind == "repeat":
        counts = data.draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
        return lambda x: x.repeat(*counts)
    if kind == "repeat_interleave":
        return lambda x: x.repeat_interleave(2, dim)
    part = data.draw(st.sampled_from(divisors(size)))
    return lambda x: x.unflatten(dim, (part, size // part)).transpose(-1, -2)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_random_chains_against_index_tensors(data):
    shapes = data.draw(st.lists(st.lists(st.integers(1, 6), max_size=3).map(tuple), min_size=1, max_size=2))
    real, symbolic = leaves(shapes)
    value, image = real["w0"], symbolic["w0"]
    for _ in range(data.draw(st.integers(1, 6))):
        if value.numel() > 600 or value.dim() > 5:
            break
        operation = draw_operation(data, tuple(value.shape))
        value = operation(value)
        image = operation(image)
        assert tuple(image.shape) == tuple(value.shape)
    assert torch.equal(evaluated(image, real), value)
    offsets = [data.draw(st.integers(0, size)) for size in value.shape]
    sizes = [data.draw(st.integers(0, size - low)) for low, size in zip(offsets, value.shape, strict=True)]
    part = SymbolicTensor(image.restricted(offsets, sizes), sizes, torch.int64)
    where = tuple(slice(low, low + size) for low, size in zip(offsets, sizes, strict=True))
    assert torch.equal(evaluated(part, real), value[where])


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> SymbolicTensor:
    return SymbolicTensor.leaf("w", shape, dtype)


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        (lambda x: x @ x, "matmul"),
        (lambda x: x.sum(), "sum"),
        (torch.sort, "sort"),
        (lambda x: x.add_(1), "add_"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.item(), "item"),
        (torch.linalg.inv, "linalg_inv"),
        (lambda x: x * torch.ones(4), "mul"),
        (lambda x: x.view(torch.float64), "view"),
        (lambda x: x[[0, 1], [0, 1]], "lists in more than one"),
        (lambda x: x[x > 0], "gt"),
        (lambda x: x.mul(2).to(torch.int32) + 1, "add"),
        (lambda x: x.data_ptr(), "data_ptr"),
        (lambda x: x.numpy(), "numpy"),
    ],
)
def test_anything_else_is_refused_by_name(operation, named):
    with pytest.raises(Untrackable, match=named):
        operation(leaf(4, 4))


def test_too_many_boxes_are_refused(monkeypatch):
    for module in (blocks, radix):
        monkeypatch.setattr(module, "MAX_BLOCKS", 1000)
    with pytest.raises(Untrackable, match="more than 1000 boxes"):
        leaf(3000)[torch.arange(2999, -1, -1)]


def test_scalar_arithmetic_is_recorded_in_order():
    changed = (1 - leaf(4) * 2).to(torch.bfloat16)
    assert changed.dtype is torch.bfloat16
    assert changed.blocks[0].steps == (("mul", 2), ("rsub", 1), ("cast", torch.bfloat16))


def test_two_weights_make_a_lazy_node():
    weight = leaf(4, 6)
    scale = SymbolicTensor.leaf("scale", (2, 3), torch.float32)
    product = weight.reshape(2, 2, 3, 2) * scale.unsqueeze(1).unsqueeze(-1)
    assert product.sources() == {"w", "scale"}
    assert tuple(product.reshape(4, 6).shape) == (4, 6)


def test_wrong_shapes_raise_as_torch_does():
    for wrong in (lambda x: x.reshape(5, 5), lambda x: torch.cat([x, leaf(3, 3)]), lambda x: x.narrow(0, 2, 9)):
        with pytest.raises(RuntimeError):
            wrong(leaf(4, 4))
    with pytest.raises(IndexError):
        leaf(4, 4)[7]


def test_empty_tensors_have_no_boxes():
    empty = leaf(0, 4)
    assert empty.blocks == []
    assert torch.cat([empty, leaf(2, 4)]).shape == (2, 4)
    assert empty.reshape(4, 0).shape == (4, 0)
