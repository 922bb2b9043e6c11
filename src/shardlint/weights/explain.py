"""Say what tensors look like that differ from what the checkpoint holds, of a bounded number of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from attrs import evolve

from ..names import natural_key, pattern_of
from .compare.likeness import LIMIT, STRIP, Likeness, equal, likeness, reordered

Box = Sequence[int]
ReadBox = Callable[[str, Box, Box], torch.Tensor]
"""Values of a box of the tensor of that name: offsets, sizes."""

MOST_TENSORS = 24
MOST_OF_A_PATTERN = 3
MOST_CANDIDATES = 256


def explained(
    names: Iterable[str], shapes: Mapping[str, tuple[int, ...]], live: ReadBox, stored: ReadBox
) -> Iterator[tuple[str, Likeness]]:
    """
    What each of the first few of `names` looks like, beside the stored tensor of that name and those of its shape.

    `shapes` are those of all stored tensors, by the names under which `stored` reads them.
    """
    seen: dict[str, int] = {}
    for count, name in enumerate(_some(names, seen)):
        if count == MOST_TENSORS:
            return
        yield name, _explained(name, shapes, live, stored)


def _some(names: Iterable[str], seen: dict[str, int]) -> Iterator[str]:
    for name in sorted(names, key=natural_key):
        pattern = pattern_of(name)
        seen[pattern] = seen.get(pattern, 0) + 1
        if seen[pattern] <= MOST_OF_A_PATTERN:
            yield name


def _explained(name: str, shapes: Mapping[str, tuple[int, ...]], live: ReadBox, stored: ReadBox) -> Likeness:
    shape = shapes[name]
    corner = _corner(shape)
    zeros = (0,) * len(shape)
    mine = live(name, zeros, corner)
    theirs = stored(name, zeros, corner).to(mine.dtype)
    found = likeness(mine, theirs)
    if found.text and not found.text.startswith("differs"):
        return found
    other = _other_tensor(name, shapes, mine, stored, corner)
    if other:
        return evolve(found, text=f"equals {other} of the checkpoint")
    if corner != shape and len(shape) == 2:
        strip = (shape[0], min(shape[1], STRIP))
        if math.prod(strip) <= LIMIT:
            mine = live(name, zeros, strip)
            return evolve(found, text=reordered(mine, stored(name, zeros, strip).to(mine.dtype)) or found.text)
    return found


def _corner(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The first elements along every dimension, of at most `LIMIT` in all; alike in the last two."""
    sizes = list(shape)
    while math.prod(sizes) > LIMIT:
        at = max(range(len(sizes)), key=lambda dim: sizes[dim])
        sizes[at] = (sizes[at] + 1) // 2
    return tuple(sizes)


def _other_tensor(
    name: str, shapes: Mapping[str, tuple[int, ...]], mine: torch.Tensor, stored: ReadBox, corner: tuple[int, ...]
) -> str:
    """Another stored tensor of the shape with the same elements: kin first, then whatever has that shape."""
    shape, pattern = shapes[name], pattern_of(name)
    candidates = [other for other, size in shapes.items() if size == shape and other != name]
    candidates.sort(key=lambda other: (pattern_of(other) != pattern, natural_key(other)))
    zeros = (0,) * len(shape)
    head = (*(1 for _ in corner[:-1]), *corner[-1:])
    first = mine[tuple(slice(size) for size in head)]
    for other in candidates[:MOST_CANDIDATES]:
        if equal(first, stored(other, zeros, head).to(mine.dtype)) and equal(
            mine, stored(other, zeros, corner).to(mine.dtype)
        ):
            return other
    return ""
