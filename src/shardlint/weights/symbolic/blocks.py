"""
Blocks: which elements of a tensor come from which elements of a checkpoint tensor, as boxes with affine maps.

A tensor is a list of disjoint blocks that tile its shape. Stored tensors are contiguous and row-major, so one flat
element offset says where a source element is. Everything here is pure integer arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .radix import MAX_BLOCKS, Radix, extent, normalise, row_major, split_flat, subrange, too_many

Step = tuple[str, Any]


class Block(NamedTuple):
    """
    One box of a tensor and where its elements come from.

    `lo` is the origin of the box, one integer per dimension. `axes` is one radix list per dimension: its extent is
    the size of the box there, its strides lead through the flat source from `offset`. `source` is the key of the
    checkpoint tensor, a lazy node, or None for a constant with the value `fill`. `steps` are element-wise operations
    on the source values, in order: `("cast", dtype)`, `("mul", 2.0)`.
    """

    lo: tuple[int, ...]
    axes: tuple[Radix, ...]
    source: Any
    offset: int
    steps: tuple[Step, ...] = ()
    fill: Any = None

    @property
    def size(self) -> tuple[int, ...]:
        """The size of the box in each dimension."""
        return tuple(extent(radix) for radix in self.axes)

    @property
    def volume(self) -> int:
        """The number of elements of the box."""
        count = 1
        for radix in self.axes:
            count *= extent(radix)
        return count

    @property
    def digits(self) -> tuple[tuple[int, int], ...]:
        """All (size, source stride) digits, dimension by dimension, outermost first."""
        return tuple(digit for radix in self.axes for digit in radix)

    def index_of(self, offset: int) -> tuple[int, ...] | None:
        """
        The index, within the tensor, of an element that reads this source offset; None where that cannot be told.

        Of elements that read the same one it is the first.
        """
        digits = []
        for dim, radix in enumerate(self.axes):
            weight = 1
            for size, stride in reversed(radix):
                digits.append((stride, size, dim, weight))
                weight *= size
        index, rest = list(self.lo), offset - self.offset
        for stride, size, dim, weight in sorted(digits, reverse=True):
            if size > 1 and stride > 0:
                digit = min(rest // stride, size - 1)
                index[dim] += digit * weight
                rest -= digit * stride
        return tuple(index) if rest == 0 else None


Blocks = list[Block]


def guard(blocks: Blocks) -> Blocks:
    """Return `blocks`. Raises `Untrackable` when there are more than can be handled."""
    if len(blocks) > MAX_BLOCKS:
        raise too_many()
    return blocks


def whole(source: Any, shape: Sequence[int], *, fill: Any = None) -> Blocks:
    """One block that is the whole source; a constant when `source` is None. No block for an empty shape."""
    if 0 in shape:
        return []
    strides = row_major(shape) if source is not None else (0,) * len(shape)
    axes = tuple(normalise([(size, stride)]) for size, stride in zip(shape, strides, strict=True))
    return [Block((0,) * len(shape), axes, source, 0, (), fill)]


def moved(block: Block, dim: int, origin: int, radix: Radix, offset: int = 0) -> Block:
    """The block with another origin and radix list in one dimension, `offset` further into the source."""
    return block._replace(
        lo=(*block.lo[:dim], origin, *block.lo[dim + 1 :]),
        axes=(*block.axes[:dim], radix, *block.axes[dim + 1 :]),
        offset=block.offset + offset,
    )


def narrow(blocks: Iterable[Block], dim: int, start: int, stop: int) -> Blocks:
    """The part `[start, stop)` of one dimension; coordinates begin at `start`."""
    out: Blocks = []
    for block in blocks:
        low, size = block.lo[dim], extent(block.axes[dim])
        begin, end = max(start, low), min(stop, low + size)
        if begin >= end:
            continue
        for first, radix, offset in subrange(block.axes[dim], begin - low, end - low):
            out.append(moved(block, dim, low + first - start, radix, offset))
    return guard(out)


def restrict(blocks: Blocks, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> Blocks:
    """The sub-box `[offsets, offsets + sizes)`, in coordinates relative to `offsets`."""
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        if offset or size != shape[dim]:
            blocks = narrow(blocks, dim, offset, offset + size)
    return blocks


def shifted(blocks: Blocks, dim: int, by: int) -> Blocks:
    """The blocks moved along one dimension."""
    if not by:
        return blocks
    return [moved(block, dim, block.lo[dim] + by, block.axes[dim]) for block in blocks]


def reordered(blocks: Blocks, dims: Sequence[int]) -> Blocks:
    """The blocks with their dimensions in another order; dimensions left out must have extent one."""
    return [
        block._replace(lo=tuple(block.lo[d] for d in dims), axes=tuple(block.axes[d] for d in dims)) for block in blocks
    ]


def inserted(blocks: Blocks, dim: int) -> Blocks:
    """The blocks with a new dimension of size one at `dim`."""
    return [
        block._replace(lo=(*block.lo[:dim], 0, *block.lo[dim:]), axes=(*block.axes[:dim], (), *block.axes[dim:]))
        for block in blocks
    ]


def flipped(blocks: Blocks, dim: int, size: int) -> Blocks:
    """The blocks mirrored along one dimension of the given size."""
    out: Blocks = []
    for block in blocks:
        radix = block.axes[dim]
        last = sum((count - 1) * stride for count, stride in radix)
        mirrored = normalise((count, -stride) for count, stride in radix)
        out.append(moved(block, dim, size - block.lo[dim] - extent(radix), mirrored, last))
    return out


def with_step(blocks: Blocks, step: Step) -> Blocks:
    """The blocks with one more element-wise step."""
    return [block._replace(steps=(*block.steps, step)) for block in blocks]


def _units(blocks: Blocks, dim: int) -> Blocks:
    """Cut every block into blocks of extent one along `dim`."""
    out: Blocks = []
    for block in blocks:
        size = extent(block.axes[dim])
        if len(out) + size > MAX_BLOCKS:
            raise too_many()
        for index in range(size):
            for _, radix, offset in subrange(block.axes[dim], index, index + 1):
                out.append(moved(block, dim, block.lo[dim] + index, radix, offset))
    return out


def flatten(blocks: Blocks, shape: Sequence[int], first: int, last: int) -> Blocks:
    """Merge the dimensions `first` to `last` (inclusive) of a tensor of this shape into one."""
    dims = shape[first : last + 1]
    strides = row_major(dims)
    out: Blocks = []
    for block in blocks:
        for part in _flattenable(block, dims, first):
            low = sum(at * stride for at, stride in zip(part.lo[first : last + 1], strides, strict=True))
            radix = normalise(digit for axis in part.axes[first : last + 1] for digit in axis)
            lo = (*part.lo[:first], low, *part.lo[last + 1 :])
            out.append(part._replace(lo=lo, axes=(*part.axes[:first], radix, *part.axes[last + 1 :])))
        guard(out)
    return out


def _flattenable(block: Block, dims: Sequence[int], first: int) -> Blocks:
    """Cut a block so that its part of the merged dimension is one run: extent one before the last partial one."""
    partial = next((k for k in range(len(dims) - 1, 0, -1) if extent(block.axes[first + k]) != dims[k]), 0)
    parts = [block]
    for k in range(partial):
        parts = _units(parts, first + k)
    return parts


def unflatten(blocks: Blocks, dim: int, dims: Sequence[int]) -> Blocks:
    """Split one dimension into `dims`."""
    out: Blocks = []
    for block in blocks:
        for origin, lists, offset in split_flat(block.lo[dim], block.axes[dim], dims):
            lo = (*block.lo[:dim], *origin, *block.lo[dim + 1 :])
            axes = (*block.axes[:dim], *lists, *block.axes[dim + 1 :])
            out.append(block._replace(lo=lo, axes=axes, offset=block.offset + offset))
        guard(out)
    return out


def reshape(blocks: Blocks, old: Sequence[int], new: Sequence[int]) -> Blocks:
    """The blocks of a tensor of shape `old` seen in shape `new`; both have the same, positive volume."""
    current = list(old)
    dim = 0
    for before, after in _matching_groups(old, new):
        if before == after:
            dim += len(before)
            continue
        blocks = _regroup(blocks, current, dim, before, after)
        current[dim : dim + len(before)] = after
        dim += len(after)
    return blocks


def _regroup(blocks: Blocks, shape: list[int], dim: int, before: list[int], after: list[int]) -> Blocks:
    if not before:
        for _ in after:
            blocks = inserted(blocks, dim)
        return blocks
    if not after:
        keep = [k for k in range(len(shape)) if not dim <= k < dim + len(before)]
        return reordered(blocks, keep)
    if len(before) > 1:
        blocks = flatten(blocks, shape, dim, dim + len(before) - 1)
    return unflatten(blocks, dim, after) if len(after) > 1 else blocks


def _matching_groups(old: Sequence[int], new: Sequence[int]) -> Iterable[tuple[list[int], list[int]]]:
    """Pair the shortest runs of dimensions that have equal products."""
    left, right = list(old), list(new)
    while left or right:
        before, after = left[:1], right[:1]
        del left[:1], right[:1]
        volume, other = math.prod(before), math.prod(after)
        while volume != other:
            if volume < other:
                before.append(left.pop(0))
                volume *= before[-1]
            else:
                after.append(right.pop(0))
                other *= after[-1]
        yield before, after
