"""Tensors cut into boxes that fit into memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attrs import frozen

SLAB_BYTES = 4 << 20


@frozen
class Slab:
    """A box of one tensor."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def slabs(name: str, shape: Sequence[int], item: int, limit: int = SLAB_BYTES) -> Iterator[Slab]:
    """Cut a tensor into boxes of at most `limit` bytes, in row-major order."""
    sizes = list(shape)
    depth = 0
    while depth < len(sizes) and math.prod(sizes[depth + 1 :]) * item > limit:
        depth += 1
    if depth == len(sizes):
        yield Slab(name, (0,) * len(sizes), tuple(sizes))
        return
    step = max(1, limit // max(1, math.prod(sizes[depth + 1 :]) * item))
    for number in range(math.prod(sizes[:depth])):
        outer: list[int] = []
        for size in reversed(sizes[:depth]):
            number, digit = divmod(number, size)  # noqa: PLW2901 - the number is taken apart
            outer.insert(0, digit)
        for at in range(0, sizes[depth], step):
            inner = tuple(sizes[depth + 1 :])
            count = min(step, sizes[depth] - at)
            yield Slab(name, (*outer, at, *(0,) * len(inner)), (*(1,) * depth, count, *inner))
