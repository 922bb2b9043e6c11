"""Padding: storage of a shard beyond what it holds, which must be +0.0 bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .bits import INTEGERS, UNSIGNED, bits_of, dtype_name, nonfinite_mask, values_of
from .counts import Difference, Tally, larger
from .diagnose import largest_error, pattern, unravel, written
from .live_tensor import check_readable


def padding_of(name: str, local: torch.Tensor, logical: Sequence[int]) -> Tally | None:
    """
    Count the elements of `local` beyond its `logical` shape, and those that are not zero; None when there are none.

    The sign of a zero counts. The first difference is the one with the smallest local index. Raises `Unreadable`.
    """
    if tuple(local.shape) == tuple(logical):
        return None
    check_readable(name, local)
    found = Tally()
    rest = local.detach().view(INTEGERS[local.element_size()])
    for dim, size in enumerate(logical):
        beyond = rest.narrow(dim, size, rest.shape[dim] - size)
        if beyond.numel():
            origin = [size if other == dim else 0 for other in range(local.dim())]
            _count(found, name, beyond, origin, local.dtype)
        rest = rest.narrow(dim, 0, size)
    return found if found.checked else None


def _count(found: Tally, name: str, beyond: torch.Tensor, origin: Sequence[int], dtype: torch.dtype) -> None:
    found.checked += beyond.numel()
    wrong = beyond != 0
    count = int(torch.count_nonzero(wrong))
    if not count:
        return
    patterns = bits_of(beyond[wrong].cpu())
    actual = values_of(patterns, dtype)
    error = largest_error(actual, torch.zeros(actual.shape, dtype=torch.float64))
    found.load_mismatches += count
    found.exact_mismatches += count
    found.nonfinite += int(np.count_nonzero(nonfinite_mask(patterns, dtype)))
    found.max_abs, found.max_load_abs = larger(found.max_abs, error), larger(found.max_load_abs, error)
    at = unravel(int(wrong.cpu().numpy().reshape(-1).argmax()), tuple(beyond.shape))
    index = tuple(place + start for place, start in zip(at, origin, strict=True))
    first = _difference(name, index, actual[:1], values_of(np.zeros(1, UNSIGNED[patterns.itemsize]), dtype))
    if found.first is None or first.live_index < found.first.live_index:
        found.first = first


def _difference(name: str, index: tuple[int, ...], actual: torch.Tensor, zero: torch.Tensor) -> Difference:
    return Difference(
        live_key=name,
        live_index=index,
        checkpoint_key="",
        checkpoint_index=(),
        actual=written(actual),
        actual_bits=pattern(actual),
        reference=written(zero),
        reference_bits=pattern(zero),
        reference_in_storage_dtype=written(zero),
        storage_dtype=dtype_name(actual.dtype),
        reference_dtype=dtype_name(zero.dtype),
        cast_only=False,
    )
