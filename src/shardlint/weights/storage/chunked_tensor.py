"""
Stored tensors that lie in several pieces of files: read as if they were one, contiguous and row-major.

Pieces of whole rows, which is what most shardings write, are runs of the tensor and are read where they lie. Of other
pieces the boxes that are asked for are put together.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from attrs import field, frozen

from ..compare.bits import UNSIGNED, bits_of
from ..symbolic.blocks import Block
from ..symbolic.radix import extent, row_major, split_flat
from ..symbolic.tensor import SymbolicTensor
from .reader import Reader
from .stored_tensors import Files, TensorSource


class ByteRun(NamedTuple):
    """Elements `[begin, end)` of a tensor in row-major order, which are those of `source` from `offset` on."""

    begin: int
    end: int
    source: TensorSource
    offset: int


@frozen(kw_only=True)
class Pieced(TensorSource):
    """
    A stored tensor made of `pieces`, by their keys in `region`; `path` is the folder.

    `runs` tile it in order when every piece is one run of it; else it is empty.
    """

    region: SymbolicTensor = field(eq=False)
    pieces: Mapping[str, TensorSource] = field(eq=False)
    runs: tuple[ByteRun, ...] = field(eq=False)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for piece in self.pieces.values() for name in piece.files))

    def read_into(self, files: Files, buffer: memoryview, start: int) -> None:
        item = self.dtype.itemsize
        first, last = start // item, (start + len(buffer)) // item
        if not self.runs:
            self._assemble(files, buffer, first, last)
            return
        at = bisect.bisect_right(self.runs, first, key=lambda run: run.end)
        while first < last:
            run = self.runs[at]
            count = min(last, run.end) - first
            run.source.read_into(files, buffer[: count * item], (run.offset + first - run.begin) * item)
            buffer, first, at = buffer[count * item :], first + count, at + 1

    def _assemble(self, files: Files, buffer: memoryview, first: int, last: int) -> None:
        reader = Reader(self.pieces, files, 1)
        target = np.frombuffer(buffer, dtype=UNSIGNED[self.dtype.itemsize])
        at = 0
        for origin, lists, _ in sorted(split_flat(first, ((last - first, 1),), self.shape)):
            sizes = [extent(radix) for radix in lists]
            count = math.prod(sizes)
            box = target[at : at + count].reshape(sizes)
            for block in self.region.restricted(origin, sizes):
                where = tuple(slice(low, low + size) for low, size in zip(block.lo, block.size, strict=True))
                box[where] = bits_of(reader.values(block, self.dtype))  # numpy's copy: torch would start threads
            at += count


def pieced(
    key: str, shape: tuple[int, ...], dtype: torch.dtype, parts: Iterable[tuple[Block, TensorSource]], folder: Path
) -> TensorSource:
    """
    The tensor of blocks that tile `shape`, each over the piece that it comes with.

    One piece that is the whole tensor in its order is a source as any other.
    """
    held = list(parts)
    runs = sorted(run for block, source in held if (run := _run(block, source, shape)) is not None)
    if len(held) == len(runs) == 1:
        (run,) = runs
        return TensorSource(
            key=key, shape=shape, dtype=dtype, path=run.source.path, begin=_position(run), stamp=run.source.stamp
        )
    return Pieced(
        key=key,
        shape=shape,
        dtype=dtype,
        path=folder,
        begin=0,
        region=SymbolicTensor([block for block, _ in held], shape, dtype),
        pieces={source.key: source for _, source in held},
        runs=tuple(runs) if len(runs) == len(held) else (),
    )


def _position(run: ByteRun) -> int:
    return run.source.begin + run.offset * run.source.dtype.itemsize


def _run(block: Block, source: TensorSource, shape: Sequence[int]) -> ByteRun | None:
    """The run of the tensor that a block is; None when it is none, or lies in its piece in another order."""
    inner, whole = 1, True  # whether all dimensions further in are held whole
    for size, full, axis in zip(reversed(block.size), reversed(shape), reversed(block.axes), strict=True):
        if size > 1 and (not whole or axis != ((size, inner),)):
            return None
        inner *= size
        whole = whole and size == full
    begin = sum(low * stride for low, stride in zip(block.lo, row_major(shape), strict=True))
    return ByteRun(begin, begin + inner, source, block.offset)
