"""
Loop nests over a block, cut into tiles that fit a buffer. Pure integers.

A digit is `(size, live stride, source stride)` in elements. Nests are ordered by source stride, outermost first, so
that a tile reads its source in runs that are as long as possible; the live side, which is memory, may jump.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..symbolic.blocks import Block

TILE_BYTES = 1 << 20
BUFFER_BYTES = 2 << 20
# Bytes between two runs that are cheaper to read along than to skip with a second call.
GAP_BYTES = 16 << 10

Digit = tuple[int, int, int]


class Tile(NamedTuple):
    """A part of a block: offsets of its first element on both sides, in elements, and its loop nest."""

    live: int
    source: int
    digits: tuple[Digit, ...]

    @property
    def volume(self) -> int:
        """The number of elements."""
        count = 1
        for size, _, _ in self.digits:
            count *= size
        return count

    @property
    def is_plain(self) -> bool:
        """Whether both sides are one contiguous run."""
        return not self.digits or (len(self.digits) == 1 and self.digits[0][1] == self.digits[0][2] == 1)


def nest_of(block: Block, strides: Sequence[int], base: int = 0) -> Tile:
    """The whole block as one tile of a live tensor with these strides and this storage offset."""
    digits: list[Digit] = []
    for radix, stride in zip(block.axes, strides, strict=True):
        step = stride
        inner: list[Digit] = []
        for size, source_stride in reversed(radix):
            inner.append((size, step, source_stride))
            step *= size
        digits.extend(reversed(inner))
    live = base + sum(low * stride for low, stride in zip(block.lo, strides, strict=True))
    return Tile(live, block.offset, merged(digits))


def merged(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """The digits in source order, neighbours joined where both sides go on without a gap."""
    ordered = sorted((digit for digit in digits if digit[0] != 1), key=_source_order)
    out: list[Digit] = []
    for size, live, source in ordered:
        if out and out[-1][1] == size * live and out[-1][2] == size * source:
            out[-1] = (out[-1][0] * size, live, source)
        else:
            out.append((size, live, source))
    return tuple(out)


def _source_order(digit: Digit) -> tuple[bool, int, int]:
    # Repeats (stride 0) come outermost: each repeat reads its source again.
    _, live, source = digit
    return (source != 0, -abs(source), -abs(live))


def packed_elements(strides: Sequence[tuple[int, int]], item: int) -> int:
    """Buffer elements that reading this source lattice takes: gaps that are read along included."""
    if not strides:
        return 1
    (size, stride), inner = strides[0], strides[1:]
    if skips(size, stride, inner, item):
        return size * packed_elements(inner, item)
    return span(strides)


def span(strides: Sequence[tuple[int, int]]) -> int:
    """Elements from the first to the last of the lattice."""
    return 1 + sum((size - 1) * abs(stride) for size, stride in strides)


def skips(size: int, stride: int, inner: Sequence[tuple[int, int]], item: int) -> bool:
    """Whether the runs of this digit are read one by one: they repeat, or the gap between two is wide."""
    return size > 1 and (stride == 0 or (abs(stride) - span(inner)) * item > GAP_BYTES)


class Limits(NamedTuple):
    """How large a tile may be: bytes an element, bytes of the tile, bytes of its packed source."""

    item: int
    tile: int = TILE_BYTES
    buffer: int = BUFFER_BYTES

    def allow(self, digits: Sequence[Digit]) -> bool:
        """Whether a tile with this nest is small enough."""
        volume = 1
        for size, _, _ in digits:
            volume *= size
        if volume * self.item > self.tile:
            return False
        return packed_elements([(size, source) for size, _, source in digits], self.item) * self.item <= self.buffer


def cut(tile: Tile, limits: Limits) -> Iterator[Tile]:
    """Cut a tile into tiles that the limits allow, in source order."""
    if not tile.digits or limits.allow(tile.digits):
        yield tile
        return
    (size, live, source), inner = tile.digits[0], tile.digits[1:]
    step = _largest_step(tile.digits, limits)
    for at in range(0, size, step):
        count = min(step, size - at)
        digits = ((count, live, source), *inner) if count > 1 else inner
        yield from cut(Tile(tile.live + at * live, tile.source + at * source, digits), limits)


def _largest_step(digits: tuple[Digit, ...], limits: Limits) -> int:
    """How many steps of the outermost digit are allowed; one when not even one is."""
    (size, live, source), inner = digits[0], digits[1:]
    low, high = 1, size
    while low < high:
        middle = (low + high + 1) // 2
        if limits.allow(((middle, live, source), *inner)):
            low = middle
        else:
            high = middle - 1
    return low
