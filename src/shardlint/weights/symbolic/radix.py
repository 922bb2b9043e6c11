"""
Mixed-radix index arithmetic in pure integers: how a run of positions maps to offsets in one flat source.

A *radix list* is `((size, stride), ...)`, outermost digit first. It describes `product(sizes)` positions; position `p`
written in those digits has the offset `sum(digit * stride)`. One list per tensor dimension makes flattening,
splitting and interleaving exact without cutting anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

MAX_BLOCKS = 1 << 18

Radix = tuple[tuple[int, int], ...]
Cut = tuple[int, Radix, int]


class Untrackable(NotImplementedError):  # noqa: N818 - it is a refusal: the message names the operation
    """The operation is no rearrangement that can be followed without values. The message names it."""


def too_many() -> Untrackable:
    """The refusal of a result that would need too many boxes."""
    return Untrackable(f"the result would need more than {MAX_BLOCKS} boxes")


def extent(radix: Radix) -> int:
    """Return how many positions the list describes."""
    count = 1
    for size, _ in radix:
        count *= size
    return count


def normalise(digits: Iterable[tuple[int, int]]) -> Radix:
    """Drop digits of size one and merge neighbours that form one arithmetic progression."""
    out: list[tuple[int, int]] = []
    for size, stride in digits:
        if size == 1:
            continue
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(out)


def subrange(radix: Radix, start: int, stop: int) -> list[Cut]:
    """Cut the positions `[start, stop)` into lists: `[(first position, list, offset)]` in order of position."""
    if start >= stop:
        return []
    if start == 0 and stop == extent(radix):
        return [(0, radix, 0)]
    (_, stride), tail = radix[0], radix[1:]
    if not tail:
        return [(start, normalise([(stop - start, stride)]), start * stride)]
    inner = extent(tail)
    first, begin = divmod(start, inner)
    last, end = divmod(stop, inner)
    if first == last:
        return _shifted(subrange(tail, begin, end), first, inner, stride)
    out: list[Cut] = []
    if begin:
        out += _shifted(subrange(tail, begin, inner), first, inner, stride)
        first += 1
    if last > first:
        out.append((first * inner, normalise([(last - first, stride), *tail]), first * stride))
    if end:
        out += _shifted(subrange(tail, 0, end), last, inner, stride)
    return out


def _shifted(cuts: list[Cut], digit: int, inner: int, stride: int) -> list[Cut]:
    return [(digit * inner + at, radix, digit * stride + offset) for at, radix, offset in cuts]


def factor(radix: Radix, inner_extent: int) -> tuple[Radix, Radix] | None:
    """Write the list as outer x inner digits with `extent(inner) == inner_extent`; None when that cuts a digit."""
    inner: list[tuple[int, int]] = []
    count = 1
    rest = list(radix)
    while count < inner_extent and rest:
        size, stride = rest.pop()
        need, remainder = divmod(inner_extent, count)
        if remainder:
            return None
        if size <= need:
            if need % size:
                return None
            inner.insert(0, (size, stride))
            count *= size
        else:
            if size % need:
                return None
            inner.insert(0, (need, stride))
            rest.append((size // need, stride * need))
            count = inner_extent
    return (tuple(rest), tuple(inner)) if count == inner_extent else None


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor of this shape."""
    strides: list[int] = []
    count = 1
    for size in reversed(shape):
        strides.append(count)
        count *= size
    return tuple(reversed(strides))


Split = tuple[tuple[int, ...], tuple[Radix, ...], int]


def split_flat(start: int, radix: Radix, dims: Sequence[int]) -> list[Split]:
    """
    See the positions `[start, start + extent)` of a flat dimension in the coordinates `dims`.

    Returns `[(origin, one list per dimension, offset)]`: as few boxes as fit, one row at a time where digits and rows
    do not divide each other.
    """
    if len(dims) == 1:
        return [((start,), (radix,), 0)]
    row_length = math.prod(dims[1:])
    count = extent(radix)
    row, inside = divmod(start, row_length)
    out: list[Split] = []
    done = 0
    if inside or count < row_length:
        done = min(count, row_length - inside)
        out += _partial_row(row, inside, subrange(radix, 0, done), dims)
        row += 1
    whole = (count - done) // row_length
    if whole:
        for first, cut, offset in subrange(radix, done, done + whole * row_length):
            out += _whole_rows(row, first - done, cut, offset, dims)
        done += whole * row_length
        row += whole
    if done < count:
        cuts = [(first - done, cut, offset) for first, cut, offset in subrange(radix, done, count)]
        out += _partial_row(row, 0, cuts, dims)
    return out


def _partial_row(row: int, inside: int, cuts: list[Cut], dims: Sequence[int]) -> list[Split]:
    return [
        ((row, *origin), ((), *lists), offset + more)
        for first, cut, offset in cuts
        for origin, lists, more in split_flat(inside + first, cut, dims[1:])
    ]


def _whole_rows(row: int, at: int, radix: Radix, offset: int, dims: Sequence[int]) -> list[Split]:
    """`radix` begins `at` positions behind the start of `row`, somewhere within the run of whole rows."""
    row_length = math.prod(dims[1:])
    count = extent(radix)
    parts = factor(radix, row_length) if at % row_length == 0 and count % row_length == 0 else None
    if parts:
        inner = split_flat(0, parts[1], dims[1:])
        if len(inner) == 1:
            origin, lists, more = inner[0]
            outer = (normalise(parts[0]), *(normalise(item) for item in lists))
            return [((row + at // row_length, *origin), outer, offset + more)]
    out: list[Split] = []
    done = 0
    while done < count:
        extra, column = divmod(at + done, row_length)
        take = min(row_length - column, count - done)
        cuts = [(first - done, cut, offset + more) for first, cut, more in subrange(radix, done, done + take)]
        out += _partial_row(row + extra, column, cuts, dims)
        done += take
        if len(out) > MAX_BLOCKS:
            raise too_many()
    return out
