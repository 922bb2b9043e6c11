"""Handlers of indexing by integers, slices and lists, and of the makers of constants."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from .arithmetic import looked_up
from .radix import Untrackable
from .rearrange import cat, narrow, select, unflatten, unsqueeze
from .tensor import HANDLERS, SymbolicTensor, handles, unpacked, wrap_dim


@handles("index_select")
def index_select(tensor: SymbolicTensor, dim: int, index: torch.Tensor) -> SymbolicTensor:
    """Some indices of one dimension, in the given order."""
    return take(tensor, wrap_dim(dim, tensor.dim()), _integers(index))


def take(tensor: SymbolicTensor, dim: int, indices: Sequence[int]) -> SymbolicTensor:
    """Some indices of one dimension; neighbours that ascend by one stay one box."""
    size = tensor.shape[dim]
    runs: list[list[int]] = []
    for index in indices:
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}")
        at = index % size
        if runs and runs[-1][1] == at:
            runs[-1][1] += 1
        else:
            runs.append([at, at + 1])
    if not runs:
        return narrow(tensor, dim, 0, 0)
    return cat([narrow(tensor, dim, low, high - low) for low, high in runs], dim)


def _integers(index: Any) -> list[int]:
    if isinstance(index, SymbolicTensor):
        raise Untrackable("indexing by the values of a weight")
    return [int(value) for value in index]


@handles("__getitem__")
def getitem(tensor: torch.Tensor, index: Any) -> SymbolicTensor:
    """`tensor[...]` with integers, slices, None, an ellipsis and at most one list; `table[codes]` for a real table."""
    if not isinstance(tensor, SymbolicTensor):
        return looked_up(tensor, index)
    return _indexed(tensor, index)


def _indexed(tensor: SymbolicTensor, index: Any) -> SymbolicTensor:
    dim = lists = 0
    for item in _spelled_out(index if isinstance(index, tuple) else (index,), tensor.dim()):
        if item is None:
            tensor = unsqueeze(tensor, dim)
            dim += 1
        elif isinstance(item, slice):
            tensor = _sliced(tensor, dim, *item.indices(tensor.shape[dim]))
            dim += 1
        elif _is_list(item):
            lists += 1
            if lists > 1:
                raise Untrackable("indexing by lists in more than one dimension")
            tensor = take(tensor, dim, _integers(item))
            dim += 1
        else:
            tensor = select(tensor, dim, _one_integer(item))
    return tensor


def _spelled_out(index: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """Without an ellipsis: one item for every dimension, and the `None`s."""
    used = sum(1 for item in index if item is not None and item is not Ellipsis)
    if used > rank:
        raise IndexError(f"too many indices for a tensor of {rank} dimensions")
    at = next((k for k, item in enumerate(index) if item is Ellipsis), None)
    if at is None:
        return (*index, *(slice(None),) * (rank - used))
    return (*index[:at], *(slice(None),) * (rank - used), *index[at + 1 :])


def _is_list(item: Any) -> bool:
    if isinstance(item, torch.Tensor) and not isinstance(item, SymbolicTensor):
        return item.dim() == 1 and not item.dtype.is_floating_point and item.dtype != torch.bool
    return isinstance(item, (list, tuple, range)) and not any(isinstance(value, bool) for value in item)


def _one_integer(item: Any) -> int:
    if isinstance(item, bool):
        raise Untrackable("indexing by booleans")
    try:
        return operator.index(item)
    except TypeError:
        raise Untrackable(f"indexing by a {type(item).__name__}") from None


def _sliced(tensor: SymbolicTensor, dim: int, start: int, stop: int, step: int) -> SymbolicTensor:
    if step <= 0:
        raise ValueError("a slice step must be greater than zero")
    size = tensor.shape[dim]
    if step == 1:
        return tensor if (start, stop) == (0, size) else narrow(tensor, dim, start, max(stop - start, 0))
    count = max(0, -(-(stop - start) // step))
    left = size - start
    if count and left % step == 0:  # every step-th of whole groups is one index of the inner dimension
        groups = unflatten(narrow(tensor, dim, start, left), dim, [left // step, step])
        return narrow(select(groups, dim + 1, 0), dim, 0, count)
    return take(tensor, dim, range(start, start + count * step, step))


def _constant(value: float) -> Any:
    def new(tensor: SymbolicTensor, *size: Any, **named: Any) -> SymbolicTensor:
        shape = unpacked(size) if size else list(named.get("size", ()))
        return SymbolicTensor.constant(value, shape, named.get("dtype") or tensor.dtype)

    return new


def _constant_like(value: float) -> Any:
    def new(tensor: SymbolicTensor, **named: Any) -> SymbolicTensor:
        return SymbolicTensor.constant(value, tuple(tensor.shape), named.get("dtype") or tensor.dtype)

    return new


HANDLERS.update(
    new_zeros=_constant(0), new_ones=_constant(1), zeros_like=_constant_like(0), ones_like=_constant_like(1)
)


@handles("new_full")
def new_full(tensor: SymbolicTensor, size: Sequence[int], fill_value: Any, **named: Any) -> SymbolicTensor:
    """A constant of the given size."""
    if isinstance(fill_value, torch.Tensor) or math.prod(size) < 0:
        raise Untrackable("new_full() with a tensor as its value")
    return SymbolicTensor.constant(fill_value, size, named.get("dtype") or tensor.dtype)
