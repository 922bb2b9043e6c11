"""
Exact volumes of unions: of boxes in a tensor, and of strided lattices in a flat stored tensor. Pure integers.

A lattice is `(offset, ((size, stride), ...))`. It is kept in canonical form: positive strides, ascending, merged; so a
transposed whole tensor is the same lattice as the tensor itself.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

Lattice = tuple[int, tuple[tuple[int, int], ...]]
Interval = tuple[tuple[int, int], ...]

MAX_RUNS = 1 << 22
MAX_CELLS = 1 << 25


def union_volume(boxes: Iterable[tuple[Sequence[int], Sequence[int]]]) -> int:
    """The number of points in the union of boxes `(origin, sizes)` of one rank."""
    sides = [
        tuple((low, low + size) for low, size in zip(origin, sizes, strict=True))
        for origin, sizes in boxes
        if 0 not in sizes
    ]
    return _measure(sides)


def _measure(boxes: list[Interval]) -> int:
    if not boxes:
        return 0
    if len(boxes) == 1 or not boxes[0]:
        return math.prod(high - low for low, high in boxes[0])
    (low, high), *_ = boxes[0]
    if len({box[0] for box in boxes}) == 1:
        return (high - low) * _measure([box[1:] for box in boxes])
    return _sweep(boxes)


def _sweep(boxes: list[Interval]) -> int:
    """Slabs between neighbouring edges of the first dimension, each measured by itself."""
    starts: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    for number, box in enumerate(boxes):
        starts[box[0][0]].append(number)
        ends[box[0][1]].append(number)
    edges = sorted({*starts, *ends})
    active: dict[int, Interval] = {}
    total = 0
    for low, high in itertools.pairwise(edges):
        for number in ends.get(low, ()):
            active.pop(number, None)
        for number in starts.get(low, ()):
            active[number] = boxes[number][1:]
        if active:
            total += (high - low) * _measure(list(dict.fromkeys(active.values())))
    return total


def canonical(offset: int, digits: Iterable[tuple[int, int]]) -> Lattice:
    """The set of offsets of a nest, in canonical form: order and direction do not matter."""
    positive: list[tuple[int, int]] = []
    for size, stride in digits:
        if size == 1 or stride == 0:
            continue
        offset += min(0, (size - 1) * stride)
        positive.append((size, abs(stride)))
    out: list[tuple[int, int]] = []
    for size, stride in sorted(positive, key=lambda digit: digit[1]):
        if out and out[-1][0] * out[-1][1] == stride:
            out[-1] = (out[-1][0] * size, out[-1][1])
        else:
            out.append((size, stride))
    return offset, tuple(out)


def joined(lattices: Iterable[Lattice]) -> list[Lattice]:
    """Fewer lattices with the same union: equal ones once, evenly spaced ones of one form as one."""
    current = sorted(set(lattices), key=lambda item: (item[1], item[0]))
    while True:
        found = _join_once(current)
        if len(found) == len(current):
            return found
        current = sorted(set(found), key=lambda item: (item[1], item[0]))


def _join_once(lattices: list[Lattice]) -> list[Lattice]:
    forms: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for offset, digits in lattices:
        forms[digits].append(offset)
    out: list[Lattice] = []
    for digits, offsets in forms.items():
        for first, count, step in _progressions(sorted(offsets)):
            out.append(canonical(first, [*digits, (count, step)]) if count > 1 else (first, digits))
    return out


def _progressions(offsets: list[int]) -> list[tuple[int, int, int]]:
    """Cut ascending offsets into runs with one step: `[(first, count, step)]`."""
    out: list[tuple[int, int, int]] = []
    at = 0
    while at < len(offsets):
        end = at + 1
        step = offsets[end] - offsets[at] if end < len(offsets) else 0
        while end < len(offsets) and offsets[end] - offsets[end - 1] == step:
            end += 1
        out.append((offsets[at], end - at, step))
        at = end
    return out


def lattice_volume(lattices: Iterable[Lattice]) -> int | None:
    """The number of offsets in the union of lattices; None when it cannot be told within bounded memory."""
    found = joined(lattices)
    if len(found) == 1 and _is_nested(found[0][1]):
        return math.prod(size for size, _ in found[0][1])
    runs = sum(_runs(digits) for _, digits in found)
    if runs <= MAX_RUNS:
        return _interval_union(found)
    return _marked(found)


def _is_nested(digits: Sequence[tuple[int, int]]) -> bool:
    """Whether no offset occurs twice: every stride leaps over all that the smaller ones reach."""
    reach = 0
    for size, stride in digits:
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _runs(digits: Sequence[tuple[int, int]]) -> int:
    _, outer = run_and_outer(digits)
    return math.prod(size for size, _ in outer)


def run_and_outer(digits: Sequence[tuple[int, int]]) -> tuple[int, Sequence[tuple[int, int]]]:
    """The length of the contiguous runs, and the digits over the runs."""
    return (digits[0][0], digits[1:]) if digits and digits[0][1] == 1 else (1, digits)


def _interval_union(lattices: list[Lattice]) -> int:
    starts, lengths = [], []
    for offset, digits in lattices:
        at = np.array([offset], dtype=np.int64)
        length, outer = run_and_outer(digits)
        for size, stride in outer:
            at = (at[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        starts.append(at)
        lengths.append(np.full(at.shape, length, dtype=np.int64))
    if not starts:
        return 0
    start = np.concatenate(starts)
    order = np.argsort(start, kind="stable")
    start = start[order]
    end = start + np.concatenate(lengths)[order]
    reached = np.maximum.accumulate(end)
    before = np.concatenate(([start[0]], reached[:-1]))
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


def _marked(lattices: list[Lattice]) -> int | None:
    """Mark cells of the common step in a bitmap; None when there would be too many cells."""
    low = min(offset for offset, _ in lattices)
    high = max(offset + sum((size - 1) * stride for size, stride in digits) for offset, digits in lattices) + 1
    if high - low > MAX_CELLS:
        return None
    marks = np.zeros(high - low, dtype=bool)
    for offset, digits in lattices:
        at = np.array([offset - low], dtype=np.int64)
        for size, stride in reversed(digits):
            at = (at[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        marks[at] = True
    return int(np.count_nonzero(marks))
