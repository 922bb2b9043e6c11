"""
Compare tiles: equal bits at memory speed, with the non-finite check in the same pass.

A tile that differs, or that holds an infinity or NaN, goes to `diagnose`. Nothing here tolerates anything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from ..storage.reader import Reader
from ..storage.stored_tensors import TensorSource
from ..symbolic.arithmetic import apply_steps
from ..symbolic.blocks import Block, Step
from ..symbolic.tensor import Held, Node, SymbolicTensor
from .bits import UNSIGNED, Bits, bits_of, has_nonfinite, lossless, values_of
from .counts import Tally
from .diagnose import TileEvidence, diagnose
from .live_tensor import LiveBytes
from .tiles import Limits, Tile, cut, nest_of

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcmp.restype = ctypes.c_int


class Piece:
    """
    One block of one live tensor, with how its source becomes the live values.

    `prefix` are the steps that make the reference, `casts` those that take it to the storage dtype: what the loader
    casts away is told apart from what is wrong.
    """

    def __init__(self, live: LiveBytes, block: Block, source_dtype: torch.dtype) -> None:
        self.live = live
        self.block = block
        self.source_dtype = source_dtype
        steps = simplified((*block.steps, ("cast", live.dtype)), source_dtype)
        last = max((k + 1 for k, (kind, _) in enumerate(steps) if kind != "cast"), default=0)
        self.prefix: tuple[Step, ...] = steps[:last]
        self.casts: tuple[Step, ...] = steps[last:]
        self.raw = not steps and block.source is not None
        self.runs_from_file = self.raw and isinstance(block.source, str) and live.in_host_memory
        self.harmless = self._is_harmless()

    def _is_harmless(self) -> bool:
        """Whether no cast can lose anything, so that equality after it is equality before it."""
        if self.prefix:
            return not self.casts
        at = self.source_dtype
        for _, dtype in self.casts:
            if not lossless(at, dtype):
                return False
            at = dtype
        return True

    @property
    def key(self) -> str:
        """The checkpoint tensor that the piece is counted under; empty for a constant."""
        source = self.block.source
        if isinstance(source, Node):
            # Of weight times scale the weight, which has the index of the product.
            return min(source.inputs[0].sources() if source.inputs else source.keys())
        return source or ""

    @property
    def has_index(self) -> bool:
        """Whether the offset of an element is also its flat index in the stored tensor of that key."""
        return self.block.source is not None and not isinstance(self.block.source, Held)

    def tiles(self) -> Iterator[Tile]:
        """The piece in tiles."""
        item = max(self.live.item, self.source_dtype.itemsize)
        yield from cut(nest_of(self.block, self.live.strides, self.live.base), Limits(item))

    @property
    def volume(self) -> int:
        """The number of elements."""
        return self.block.volume


def simplified(steps: tuple[Step, ...], dtype: torch.dtype) -> tuple[Step, ...]:
    """The steps without casts that change nothing: to the same dtype, or to a wider one and on from there."""
    out: list[tuple[Step, torch.dtype | None]] = []
    at: torch.dtype | None = dtype
    for kind, argument in steps:
        if kind != "cast":
            out.append(((kind, argument), at))
            at = argument if kind == "view" else argument.dtype if kind == "table" else at
            continue
        while out and out[-1][0][0] == "cast" and _widens(out[-1]):
            at = out.pop()[1]
        if argument != at:
            out.append((("cast", argument), at))
            at = argument
    return tuple(step for step, _ in out)


def _widens(item: tuple[Step, torch.dtype | None]) -> bool:
    (_, target), before = item
    return before is not None and lossless(before, target)


def check_tile(piece: Piece, tile: Tile, reader: Reader, tally: Tally, *, detailed: bool = True) -> bool:
    """Compare one tile and add to the tally; true when it was clean. `detailed` allows the full diagnosis."""
    live = piece.live
    if piece.runs_from_file and tile.is_plain:
        count = tile.volume
        stored = reader.run(piece.block.source, tile.source, count)
        if _memcmp(live.address(tile.live), stored, count * live.item) == 0 and not has_nonfinite(
            live.patterns(tile), live.dtype
        ):
            tally.checked += count
            return True
    return _general(piece, tile, reader, tally, detailed)


def _general(piece: Piece, tile: Tile, reader: Reader, tally: Tally, detailed: bool) -> bool:
    live = piece.live
    actual = live.patterns(tile)
    source = _source_patterns(piece, tile, reader)
    tally.checked += tile.volume
    if piece.raw:
        if np.array_equal(actual, source) and not has_nonfinite(actual, live.dtype):
            return True
        reference = loaded = values_of(np.ascontiguousarray(source), live.dtype)
    else:
        stored = values_of(np.ascontiguousarray(source), piece.source_dtype)
        reference = apply_steps(stored, piece.prefix)
        loaded = apply_steps(reference, piece.casts)
        same = np.array_equal(actual.reshape(-1), bits_of(loaded).reshape(-1)) and not has_nonfinite(actual, live.dtype)
        if same and (piece.harmless or _survives(loaded, reference)):
            return True
    evidence = TileEvidence(
        live=piece.live,
        block=piece.block,
        key=piece.key,
        has_index=piece.has_index,
        tile=tile,
        actual=np.ascontiguousarray(actual).reshape(-1),
        reference=reference,
        loaded=loaded,
    )
    diagnose(evidence, tally, detailed=detailed)
    return False


def _survives(loaded: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether casting back gives the reference: then the cast lost nothing here."""
    return bool(np.array_equal(bits_of(loaded.to(reference.dtype)), bits_of(reference)))


def _source_patterns(piece: Piece, tile: Tile, reader: Reader) -> Bits:
    block = piece.block
    if block.source is None:
        one = bits_of(torch.full((1,), block.fill, dtype=piece.source_dtype))
        return np.broadcast_to(one.view(UNSIGNED[one.itemsize]), [size for size, _, _ in tile.digits])
    return reader.patterns(block.source, tile.source, [(size, stride) for size, _, stride in tile.digits])


def pieces_of(live: LiveBytes, region: SymbolicTensor, sources: Mapping[str, TensorSource]) -> Iterator[Piece]:
    """The pieces of a local tensor whose elements must be those of a symbolic tensor of the same shape."""
    for block in region.blocks:
        source = block.source
        dtype = region.dtype
        if source is not None:
            dtype = source.dtype if isinstance(source, Node) else sources[source].dtype
        yield Piece(live, block, dtype)
