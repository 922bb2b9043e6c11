"""What the bit patterns of every dtype mean: integer views, non-finite patterns, casts that lose nothing."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...facts.checkpoint import TORCH_DTYPES

Bits = npt.NDArray[Any]
_maximum = np.maximum.reduce

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIGNED: dict[int, type[np.signedinteger[Any]]] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}

# safetensors' names. F4 is stored two to a byte and read, as safetensors does, as pairs; F6 has no dtype in torch.
_NAMED = {**TORCH_DTYPES, "F4": "float4_e2m1fn_x2"}

# The smallest pattern, sign cleared, that is not finite. Sign and magnitude formats only.
_LIMITS = {
    "bfloat16": 0x7F80,
    "float16": 0x7C00,
    "float32": 0x7F800000,
    "float64": 0x7FF0000000000000,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7C,
}
# Formats with exactly one pattern that is not finite.
_SINGLE = {"float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80, "float8_e8m0fnu": 0xFF}


def torch_dtype(name: str) -> torch.dtype | None:
    """The dtype for a safetensors dtype name; None when the installed torch has none."""
    found = getattr(torch, _NAMED.get(name, ""), None)
    return found if isinstance(found, torch.dtype) else None


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def has_nonfinite(patterns: Bits, dtype: torch.dtype) -> bool:
    """
    Whether any pattern (an unsigned array) is an infinity or NaN of `dtype`.

    Two maxima, one over the signed and one over the unsigned view, make no temporary.
    """
    if not patterns.size:
        return False
    name = dtype_name(dtype)
    limit = _LIMITS.get(name)
    if limit is not None:
        # ufunc.reduce over all axes: the methods `max` add a call in Python for every tile.
        if _maximum(patterns.view(SIGNED[patterns.itemsize]), axis=None) >= limit:
            return True
        return bool(_maximum(patterns, axis=None) >= limit | (1 << (8 * patterns.itemsize - 1)))
    single = _SINGLE.get(name)
    return single is not None and bool((patterns == single).any())


def nonfinite_mask(patterns: Bits, dtype: torch.dtype) -> Bits:
    """Which patterns are infinities or NaNs of `dtype`."""
    name = dtype_name(dtype)
    limit = _LIMITS.get(name)
    if limit is not None:
        sign_cleared = patterns & patterns.dtype.type((1 << (8 * patterns.itemsize - 1)) - 1)
        return np.asarray(sign_cleared >= patterns.dtype.type(limit))
    single = _SINGLE.get(name)
    if single is None:
        return np.zeros(patterns.shape, dtype=bool)
    return np.asarray(patterns == patterns.dtype.type(single))


def is_opaque(dtype: torch.dtype) -> bool:
    """Whether torch cannot convert the dtype to numbers (packed formats): bits are compared, errors are unknown."""
    return dtype_name(dtype) == "float4_e2m1fn_x2"


def lossless(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every value of `source` is a value of `target`. A false answer may only mean that it is not known."""
    if source == target:
        return True
    if is_opaque(source) or is_opaque(target) or source.is_complex or target.is_complex:
        return False
    if source.is_floating_point != target.is_floating_point:
        return False
    if source.is_floating_point:
        a, b = torch.finfo(source), torch.finfo(target)
        has_infinity = target.itemsize > 1 or dtype_name(target) == "float8_e5m2"
        return has_infinity and a.max <= b.max and a.eps >= b.eps and a.tiny * a.eps >= b.tiny * b.eps
    low, high = _integer_range(source)
    other_low, other_high = _integer_range(target)
    return other_low <= low and high <= other_high and target != torch.bool


def _integer_range(dtype: torch.dtype) -> tuple[int, int]:
    if dtype == torch.bool:
        return 0, 1
    info = torch.iinfo(dtype)
    return info.min, info.max


def bits_of(values: torch.Tensor) -> Bits:
    """The bit patterns of a CPU tensor as an unsigned array of the same shape, without a copy."""
    item = values.element_size()
    view: Bits = values.detach().view(INTEGERS[item]).numpy()
    return view.view(UNSIGNED[item])


def values_of(patterns: Bits, dtype: torch.dtype) -> torch.Tensor:
    """The bit patterns as a tensor of `dtype`, sharing memory with an array that is contiguous and writable."""
    item = patterns.itemsize
    signed = patterns.view(np.uint8 if item == 1 else SIGNED[item])
    return torch.from_numpy(signed).view(dtype)
