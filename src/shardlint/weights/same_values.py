"""Tensors that two checkpoints store under different names with the same bits."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

from ..names import natural_key
from .checkpoint_boxes import slabs
from .compare.bits import bits_of
from .storage.reader import Reader
from .storage.stored_tensors import Files, TensorSource
from .symbolic.tensor import SymbolicTensor

Regions = Mapping[str, SymbolicTensor]
Sources = Mapping[str, TensorSource]
Shape = tuple[object, ...]


def same_values(
    one: tuple[Regions, Sources], two: tuple[Regions, Sources], *, limit: int = 4 << 20
) -> tuple[tuple[str, str], ...]:
    """
    Names of `one` with the name of `two` that holds the same bits, of tensors whose name the other side does not have.

    Tensors are read `limit` bytes at a time, and only those whose shape and dtype occur on both sides. Several with
    the same bits are paired in natural order, when there are as many on both sides. Equal constants, such as zeros,
    prove nothing by themselves: they are paired when some other tensor is.
    """
    left, right = (_alone(mine[0], other[0]) for mine, other in ((one, two), (two, one)))
    shapes = left.keys() & right.keys()
    first = _digests(one, (name for shape in shapes for name in left[shape]), limit)
    second = _digests(two, (name for shape in shapes for name in right[shape]), limit)
    pairs: list[tuple[str, str]] = []
    proven = False
    for (digest, varies), names in first.items():
        others = second.get((digest, varies), [])
        if len(others) == len(names):
            proven = proven or varies
            pairs += zip(sorted(names, key=natural_key), sorted(others, key=natural_key), strict=True)
    return () if not proven else tuple(sorted(pairs, key=lambda pair: natural_key(pair[0])))


def _alone(mine: Regions, other: Regions) -> dict[Shape, list[str]]:
    found: dict[Shape, list[str]] = defaultdict(list)
    for name, region in mine.items():
        if name not in other and region.numel():
            found[(*region.shape, region.dtype)].append(name)
    return found


def _digests(side: tuple[Regions, Sources], names: Iterable[str], limit: int) -> dict[tuple[bytes, bool], list[str]]:
    """The names by the digest of their bits, and whether these are not all of one element."""
    regions, sources = side
    found: dict[tuple[bytes, bool], list[str]] = defaultdict(list)
    with Files() as files:
        reader = Reader(sources, files, 1)
        for name in names:
            region = regions[name]
            digest = hashlib.blake2b(repr((tuple(region.shape), region.dtype)).encode(), digest_size=16)
            varies = False
            for slab in slabs(name, tuple(region.shape), region.itemsize, limit):
                patterns = bits_of(reader.box(region, slab.offsets, slab.sizes)).reshape(-1)
                varies = varies or bool((patterns != patterns[0]).any())
                digest.update(patterns.tobytes())
            found[digest.digest(), varies].append(name)
    return found
