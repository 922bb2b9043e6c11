"""The slow path: what exactly differs in a tile that is not clean."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen

from ..symbolic.blocks import Block
from ..symbolic.radix import row_major
from .bits import Bits, bits_of, dtype_name, has_nonfinite, is_opaque, nonfinite_mask
from .counts import Difference, Tally, larger
from .live_tensor import LiveBytes, index_from_strides
from .tiles import Tile


@frozen(kw_only=True)
class TileEvidence:
    """
    One tile with both sides at hand, flat, in source order.

    `reference` has the checkpoint's dtype (or that of the arithmetic that decodes it), `loaded` the storage dtype.
    """

    live: LiveBytes
    block: Block
    key: str
    has_index: bool
    tile: Tile
    actual: Bits
    reference: torch.Tensor
    loaded: torch.Tensor


def diagnose(evidence: TileEvidence, tally: Tally, *, detailed: bool) -> None:
    """Count differences and non-finite elements, keep the first; with `detailed` measure the errors too."""
    loaded = bits_of(evidence.loaded).reshape(-1)
    differs = evidence.actual != loaded
    exact = _exact_differences(evidence, differs)
    load_count, exact_count = int(np.count_nonzero(differs)), int(np.count_nonzero(exact))
    tally.load_mismatches += load_count
    tally.exact_mismatches += exact_count
    special = _nonfinite(evidence)
    if special is not None:
        tally.nonfinite += int(np.count_nonzero(special))
        tally.special = tally.special or _difference(evidence, int(special.argmax()), cast_only=False)
    if not (load_count or exact_count):
        return
    mask, cast_only = (differs, False) if load_count else (exact, True)
    if tally.first is None or (tally.first.cast_only and not cast_only):
        tally.offer(_difference(evidence, int(mask.argmax()), cast_only))
    if not detailed:
        tally.counted_tiles += 1
        return
    tally.detailed_tiles += 1
    actual = values(evidence.actual, evidence.live.dtype)
    tally.max_abs = larger(tally.max_abs, largest_error(actual, evidence.reference))
    tally.max_load_abs = larger(tally.max_load_abs, largest_error(actual, evidence.loaded))


def values(patterns: Bits, dtype: torch.dtype) -> torch.Tensor:
    """A copy of the patterns as a tensor."""
    return torch.from_numpy(patterns.copy().view(np.uint8)).view(dtype)


def _exact_differences(evidence: TileEvidence, differs: Bits) -> Bits:
    """Where the live value is not the reference itself: no cast allowed, and the zeros differ in sign."""
    if evidence.reference.dtype == evidence.live.dtype:
        return differs
    actual = values(evidence.actual, evidence.live.dtype)
    reference = evidence.reference.reshape(-1)
    if is_opaque(actual.dtype) or is_opaque(reference.dtype):
        return np.ones(differs.shape, dtype=bool)
    if actual.is_floating_point() and reference.is_floating_point():
        return np.asarray(bits_of(actual.double()) != bits_of(reference.double()))
    return _mixed_differences(actual, reference)


def _mixed_differences(actual: torch.Tensor, reference: torch.Tensor) -> Bits:
    """Integers against integers, or against floats: equal only when both conversions agree."""
    if not actual.is_floating_point() and not reference.is_floating_point():
        overflow = torch.zeros(actual.shape, dtype=torch.bool)
        if (actual.dtype == torch.uint64) != (reference.dtype == torch.uint64):
            wide = actual if actual.dtype == torch.uint64 else reference
            overflow = wide.view(torch.int64) < 0
        return np.asarray(((actual.long() != reference.long()) | overflow).numpy())
    whole, real = (reference, actual) if actual.is_floating_point() else (actual, reference)
    real = real.double()
    there_and_back = whole.double().long() == whole.long()
    return np.asarray(((whole.double() != real) | ~there_and_back).numpy())


def _nonfinite(evidence: TileEvidence) -> Bits | None:
    """Where either side is not finite; None when both are everywhere."""
    reference = bits_of(evidence.reference).reshape(-1)
    one = has_nonfinite(evidence.actual, evidence.live.dtype)
    two = has_nonfinite(reference, evidence.reference.dtype)
    if not (one or two):
        return None
    mask = nonfinite_mask(evidence.actual, evidence.live.dtype) | nonfinite_mask(reference, evidence.reference.dtype)
    return np.asarray(mask) if mask.any() else None


def largest_error(actual: torch.Tensor, reference: torch.Tensor) -> float | None:
    """The largest absolute difference in float64; None when it is not finite or the dtype has no numbers."""
    if is_opaque(actual.dtype) or is_opaque(reference.dtype) or not actual.numel():
        return None
    error = float((actual.double() - reference.reshape(-1).double()).abs().max())
    return error if np.isfinite(error) else None


def _difference(evidence: TileEvidence, at: int, cast_only: bool) -> Difference:
    live, source = offsets_at(evidence.tile, at)
    actual = values(evidence.actual[at : at + 1], evidence.live.dtype)
    reference, loaded = (item.reshape(-1)[at : at + 1].clone() for item in (evidence.reference, evidence.loaded))
    return Difference(
        live_key=evidence.live.name,
        live_index=_live_index(evidence, live, source),
        checkpoint_key=evidence.key,
        checkpoint_index=(source,) if evidence.has_index else (),
        actual=written(actual),
        actual_bits=pattern(actual),
        reference=written(reference),
        reference_bits=pattern(reference),
        reference_in_storage_dtype=written(loaded),
        storage_dtype=dtype_name(evidence.live.dtype),
        reference_dtype=dtype_name(reference.dtype),
        cast_only=cast_only,
    )


def _live_index(evidence: TileEvidence, live: int, source: int) -> tuple[int, ...]:
    """The index of a live element: by its place in storage, or by its source where elements share one place."""
    index = evidence.block.index_of(source) if evidence.live.repeats else None
    return evidence.live.index_of(live) if index is None else evidence.live.shifted(index)


def offsets_at(tile: Tile, at: int) -> tuple[int, int]:
    """The live and source offsets of the element at a position of the tile."""
    live, source = tile.live, tile.source
    for size, live_stride, source_stride in reversed(tile.digits):
        at, digit = divmod(at, size)
        live += digit * live_stride
        source += digit * source_stride
    return live, source


def unravel(offset: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of a flat element of a row-major tensor."""
    return index_from_strides(offset, shape, row_major(shape))


def pattern(one: torch.Tensor) -> str:
    """The bit pattern of one element, `0x3f80`."""
    return f"0x{int(bits_of(one).reshape(-1)[0]):0{2 * one.element_size()}x}"


def written(one: torch.Tensor) -> str:
    """One element as text that reads back as the same number; its bits for packed formats."""
    if is_opaque(one.dtype):
        return pattern(one)
    value = one.reshape(-1)[0]
    if one.dtype.is_floating_point:
        return repr(float(value.double()))
    return str(int(value) if one.dtype != torch.bool else bool(value))
