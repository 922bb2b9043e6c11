"""
Which part of a global tensor does a rank hold? Answered in integers, for any rank, without a process group.

A layout is a mesh shape, a coordinate in it and one placement per mesh axis. Replaying the placements from left to
right on index ranges gives, per tensor dim, the ranges that the rank holds; their product is a list of boxes.
Sharding is `torch.chunk`: pieces of the rounded-up size, the last ones shorter or empty. A strided shard cuts the
dim into `split_factor` pieces first, cuts each of those, and joins what the rank gets of each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

Range = tuple[int, int]  # start and length
DimRanges = tuple[Range, ...]

SHARD = "shard"
STRIDED = "strided"
REPLICATE = "replicate"
PARTIAL = "partial"
OTHER = "other"


@frozen
class Box:
    """A rectangular region of a global tensor: where it begins in each tensor dim, and how far it reaches."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    def overlaps(self, other: Box) -> bool:
        """Whether the two boxes share an element."""
        sides = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        return all(max(a, b) < min(a + m, b + n) for a, m, b, n in sides)

    def text(self) -> str:
        """`[0:4, 8:16]`."""
        return "[" + ", ".join(f"{start}:{start + size}" for start, size in self._sides()) + "]"

    def _sides(self) -> Iterator[Range]:
        return zip(self.offsets, self.sizes, strict=True)


@frozen
class Placement:
    """
    What one mesh axis does to a tensor: `kind` is shard, strided, replicate, partial or other.

    `dim` is the tensor dim of a shard (negative ones count from the end), `split_factor` that of a strided shard.
    `text` is what the placement calls itself.
    """

    kind: str
    dim: int | None = None
    split_factor: int | None = None
    text: str = ""

    @property
    def is_shard(self) -> bool:
        """Whether ranks along the axis hold different parts."""
        return self.kind in (SHARD, STRIDED)

    def tensor_dim(self, ndim: int) -> int:
        """The tensor dim as a number from 0. Raises `ValueError` when the placement shards no dim of an `ndim`."""
        if self.dim is None or not -ndim <= self.dim < ndim:
            raise ValueError(f"placement {self.text or self.kind} shards dim {self.dim} of a tensor of {ndim} dims")
        return self.dim % ndim


def chunk(ranges: Sequence[Range], pieces: int, index: int) -> DimRanges:
    """Piece `index` of `torch.chunk(..., pieces)` of the indices in `ranges`: empty past the last one."""
    total = sum(length for _, length in ranges)
    size = -(-total // pieces)
    low, high = min(total, size * index), min(total, size * (index + 1))
    out: list[Range] = []
    seen = 0
    for start, length in ranges:
        begin, end = max(low, seen), min(high, seen + length)
        if begin < end:
            out.append((start + begin - seen, end - begin))
        seen += length
    return merged(out)


def merged(ranges: Iterable[Range]) -> DimRanges:
    """The same indices in the same order, adjacent ranges joined."""
    out: list[Range] = []
    for start, length in ranges:
        if out and sum(out[-1]) == start:
            out[-1] = (out[-1][0], out[-1][1] + length)
        else:
            out.append((start, length))
    return tuple(out)


def replay(
    global_shape: Sequence[int], mesh_shape: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> tuple[DimRanges, ...]:
    """
    The index ranges of each tensor dim that the rank at `coordinate` holds, in the order of its local tensor.

    A replicated or partial axis changes nothing. Raises `ValueError` for a placement of another kind, for a dim
    that the tensor lacks, and when mesh, coordinate and placements are not of one length.
    """
    dims: list[DimRanges] = [((0, size),) if size else () for size in global_shape]
    for pieces, index, placement in zip(mesh_shape, coordinate, placements, strict=True):
        if placement.kind == OTHER:
            raise ValueError(f"cannot tell what the placement {placement.text} holds")
        if placement.is_shard:
            dim = placement.tensor_dim(len(dims))
            dims[dim] = _cut(dims[dim], placement, pieces, index)
    return tuple(dims)


def _cut(ranges: DimRanges, placement: Placement, pieces: int, index: int) -> DimRanges:
    if placement.kind == SHARD:
        return chunk(ranges, pieces, index)
    parts = placement.split_factor or 1
    return merged(
        itertools.chain.from_iterable(chunk(chunk(ranges, parts, part), pieces, index) for part in range(parts))
    )


def product(dims: Sequence[DimRanges]) -> tuple[Box, ...]:
    """The boxes that the ranges of each dim span: none when a dim is empty, one for a scalar."""
    picks = itertools.product(*dims)
    return tuple(Box(tuple(start for start, _ in pick), tuple(size for _, size in pick)) for pick in picks)


def boxes(
    global_shape: Sequence[int], mesh_shape: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> tuple[Box, ...]:
    """The boxes of the global tensor that the rank at `coordinate` holds. Raises as `replay` does."""
    return product(replay(global_shape, mesh_shape, coordinate, placements))


def shape_of(dims: Sequence[DimRanges]) -> tuple[int, ...]:
    """The shape of the local tensor that holds the ranges."""
    return tuple(sum(length for _, length in ranges) for ranges in dims)


def rechunk(dims: Sequence[DimRanges], dim: int, pieces: int, index: int) -> tuple[DimRanges, ...]:
    """
    What is left after the local tensor is itself chunked along `dim`: the order in which data-parallel sharding is
    put on top of tensor or expert parallelism, whatever the placements of the result claim.
    """
    at = dim % len(dims)
    return (*dims[:at], chunk(dims[at], pieces, index), *dims[at + 1 :])


def coordinates(mesh_shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every coordinate of a mesh, in the order of its ranks."""
    return itertools.product(*(range(size) for size in mesh_shape))


def flat_boxes(shape: Sequence[int], start: int, length: int) -> tuple[Box, ...]:
    """
    The boxes of the elements `start` up to `start + length` of a tensor that was flattened row by row.

    At most `2 * ndim - 1` boxes, in the order of the elements. Raises `ValueError` for a range outside the tensor.
    """
    if start < 0 or length < 0 or start + length > math.prod(shape):
        raise ValueError(f"elements {start} to {start + length} are not all within a tensor of shape {tuple(shape)}")
    return tuple(_flat(tuple(shape), start, start + length))


def _flat(shape: tuple[int, ...], begin: int, end: int) -> Iterator[Box]:
    if begin >= end:
        return
    if len(shape) <= 1:
        yield Box((begin,), (end - begin,)) if shape else Box((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-begin // row), end // row
    if first > last:  # the whole range lies within one row
        yield from _row(shape, last, begin - last * row, end - last * row)
        return
    if begin < first * row:
        yield from _row(shape, first - 1, begin - (first - 1) * row, row)
    if first < last:
        yield Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))
    if last * row < end:
        yield from _row(shape, last, 0, end - last * row)


def _row(shape: tuple[int, ...], index: int, begin: int, end: int) -> Iterator[Box]:
    for box in _flat(shape[1:], begin, end):
        yield Box((index, *box.offsets), (1, *box.sizes))
