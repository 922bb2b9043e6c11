"""What a tensor looks like that is not the stored one: transposed, reordered, scaled, padded, or how far off."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from .bits import bits_of, is_opaque

# Elements of one tensor that are looked at.
LIMIT = 1 << 22
# Columns (or rows) by which rows (or columns) are told apart.
STRIP = 64
_MOST_BLOCKS = 8


@frozen(kw_only=True)
class Likeness:
    """
    What a difference looks like. `text` follows the name of the tensor: `equals the stored tensor transposed`.

    `median_abs` is the median of the differences that are not zero, in float64, None when none is finite. `bits` counts
    the low bits of the storage dtype in which all of the differences lie.
    """

    text: str = ""
    median_abs: float | None = None
    bits: int = 0


def likeness(live: torch.Tensor, stored: torch.Tensor) -> Likeness:
    """Compare two tensors of one shape and dtype, of at most `LIMIT` elements, that differ."""
    if is_opaque(live.dtype) or not live.numel():
        return Likeness()
    live, stored = live.contiguous(), stored.contiguous()
    text = _same_number(live) or transposed(live, stored) or reordered(live, stored) or _scaled(live, stored)
    changed = bits_of(live).reshape(-1) ^ bits_of(stored).reshape(-1)
    differences = (live.double() - stored.double()).abs().reshape(-1)
    differences = differences[differences.isfinite() & (differences > 0)]
    median = float(differences.median()) if differences.numel() else None
    bits = int(changed.max()).bit_length()
    text = text or _last_rows(live, stored) or _low_bits(live, bits)
    return Likeness(text=text, median_abs=median, bits=bits)


def equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one dtype have the same shape and bits."""
    return one.shape == two.shape and bool(np.array_equal(bits_of(one.contiguous()), bits_of(two.contiguous())))


def _same_number(live: torch.Tensor) -> str:
    first = live.reshape(-1)[0]
    if live.numel() > 1 and bool((live == first).all()):
        return f"holds the same number everywhere, {float(first):.6g}"
    return ""


def transposed(live: torch.Tensor, stored: torch.Tensor) -> str:
    """Whether the last two dimensions are exchanged, or the elements of the exchange were read in the live shape."""
    if live.dim() < 2:
        return ""
    turned = stored.transpose(-1, -2).contiguous()
    if live.shape[-1] == live.shape[-2] and equal(live, turned):
        return "equals the stored tensor transposed" + (" in its last two dimensions" if live.dim() > 2 else "")
    if equal(live.reshape(-1), turned.reshape(-1)):
        return "equals the stored tensor transposed and read in the shape of the live one"
    return ""


def reordered(live: torch.Tensor, stored: torch.Tensor) -> str:
    """Whether the slices along a dimension are the stored ones in another order, and which."""
    for dim in range(min(live.dim(), 2) if live.dim() > 1 else 0):
        mine, other = live.movedim(dim, 0), stored.movedim(dim, 0)
        order = _order(mine, other)
        if order is not None:
            what = ("rows", "columns")[dim] if live.dim() == 2 else f"slices along dimension {dim}"
            return f"holds the stored {what} in another order{_named(order)}"
    return ""


def _order(live: torch.Tensor, stored: torch.Tensor) -> npt.NDArray[np.intp] | None:
    """The stored place of each live slice along the first dimension; None when they are not the same slices."""
    keys = [[row.tobytes() for row in bits_of(side.reshape(side.shape[0], -1).contiguous())] for side in (live, stored)]
    place = {key: at for at, key in enumerate(keys[1])}
    if len(place) != len(keys[1]) or set(keys[0]) != place.keys():
        return None
    return np.array([place[key] for key in keys[0]])


def _named(order: npt.NDArray[np.intp]) -> str:
    """What an order of slices is: two halves of each head apart or side by side, or blocks exchanged."""
    count = len(order)
    plain = np.arange(count)
    starts = np.flatnonzero(np.diff(order) != 1) + 1
    if len(starts) < _MOST_BLOCKS:
        return f": {len(starts) + 1} blocks are exchanged, as of gate and up or of query, key and value"
    for heads in (size for size in range(1, count // 2 + 1) if count % (2 * size) == 0):
        pairs = plain.reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1)
        halves = plain.reshape(heads, 2, -1).transpose(0, 2, 1).reshape(-1)
        for pattern, text in ((pairs, "pairs became halves"), (halves, "halves became pairs")):
            if np.array_equal(order, pattern):
                of = f" of each of {heads} heads, as between two forms of rotary embedding" if heads > 1 else ""
                return f": {text}{of or ', as of gate and up that are packed'}"
    return ""


def _scaled(live: torch.Tensor, stored: torch.Tensor) -> str:
    """Whether all elements are the stored ones times one number, or plus one."""
    if not live.is_floating_point() or live.numel() < 2:
        return ""
    mine, other = live.double().reshape(-1), stored.double().reshape(-1)
    at = int(other.abs().argmax())
    precision = 4 * torch.finfo(live.dtype).eps
    if not math.isfinite(float(mine[at])) or float(other[at]) == 0.0:
        return ""
    factor = float(mine[at] / other[at])
    if factor != 1.0 and bool(((mine - factor * other).abs() <= precision * mine.abs()).all()):
        return f"is the stored tensor times {factor:.6g}"
    if bool(((mine - other).abs() - 1.0).abs().max() <= precision * float(mine.abs().max() + 1.0)):
        sign = "plus" if float(mine[at]) > float(other[at]) else "minus"
        shift = mine - other
        return f"is the stored tensor {sign} 1" if float(shift.min()) * float(shift.max()) > 0 else ""
    return ""


def _low_bits(live: torch.Tensor, bits: int) -> str:
    """Whether all differences are of the size of rounding."""
    few = live.is_floating_point() and live.element_size() > 1 and bits <= 2 * live.element_size()
    return f"differs in the lowest {bits} of its {8 * live.element_size()} bits only" if few else ""


def _last_rows(live: torch.Tensor, stored: torch.Tensor) -> str:
    """Whether only the last rows differ, as those of a padded vocabulary do."""
    if live.dim() < 2:
        return ""
    rows = live.shape[0]
    differs = np.flatnonzero((bits_of(live) != bits_of(stored)).reshape(rows, -1).any(axis=1))
    first = int(differs[0]) if differs.size else 0
    if not first or rows - first > rows // 4 or len(differs) != rows - first:
        return ""
    padded = any(bool((side[first:] == side[first]).all()) for side in (live, stored))
    return f"differs in its last {rows - first} of {rows} rows only" + (", which are padding" if padded else "")
