"""Where single elements of a symbolic tensor come from, and the first one that is not where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from .compare.diagnose import unravel
from .symbolic.blocks import Block
from .symbolic.radix import extent, row_major
from .symbolic.tensor import Node, SymbolicTensor


@frozen(kw_only=True)
class ElementOrigin:
    """
    What one element is: element `flat` of `source`, or of a constant with that value.

    `computed` tells that an operation other than a cast changed its value.
    """

    source: Any
    flat: int
    computed: bool = False


def wrong_position(source: Any, shape: Sequence[int], tensor: SymbolicTensor) -> int | None:
    """
    The first flat position of `tensor` that is not the element of `source` at the same position; None without one.

    `shape` is the shape of the source. Casts do not count, other element-wise operations do.
    """
    if tuple(tensor.shape) != tuple(shape):
        return 0
    strides = row_major(shape)
    found = [at for block in tensor.blocks if (at := _wrong_in(block, source, strides)) is not None]
    return min(found, default=None)


def _wrong_in(block: Block, source: Any, strides: Sequence[int]) -> int | None:
    """
    The first wrong position of one block.

    Both the position and the source element are sums over the digits of the block, so they part at the innermost digit
    whose two strides differ, and not before.
    """
    begin = sum(at * stride for at, stride in zip(block.lo, strides, strict=True))
    if block.source != source or block.offset != begin or _computed(block):
        return begin
    for radix, stride in zip(reversed(block.axes), reversed(strides), strict=True):
        inner = 1
        for size, held in reversed(radix):
            if size > 1 and held != inner * stride:
                return begin + inner * stride
            inner *= size
    return None


def _computed(block: Block) -> bool:
    return isinstance(block.source, Node) or any(name != "cast" for name, _ in block.steps)


def origin_at(tensor: SymbolicTensor, position: int) -> ElementOrigin:
    """Where the element at a flat position comes from. Raises `IndexError` when there is none."""
    index = unravelled(position, tuple(tensor.shape))
    for block in tensor.blocks:
        if all(0 <= at - low < extent(radix) for at, low, radix in zip(index, block.lo, block.axes, strict=True)):
            flat = block.offset
            for at, low, radix in zip(index, block.lo, block.axes, strict=True):
                rest = at - low
                for size, stride in reversed(radix):
                    rest, digit = divmod(rest, size)
                    flat += digit * stride
            return ElementOrigin(
                source=block.fill if block.source is None else block.source, flat=flat, computed=_computed(block)
            )
    raise IndexError(f"no block holds the position {position}")


def unravelled(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of a flat position."""
    return tuple(int(at) for at in unravel(position, tuple(shape)))
