"""
Who wrote a tensor? Put a pattern into every tensor that nobody computes, and look afterwards where it still is.

A pattern is a NaN with a payload for floating dtypes, a large odd number for integers, and alternating small numbers
for dtypes of one byte. A tensor of one byte per element counts as unwritten only if its version did not move either:
so few different values can come about by chance.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from attrs import field, frozen

from ..introspect.attributes import read
from ..introspect.walk import walk
from ..names import natural_key

_WATCHES: weakref.WeakKeyDictionary[Any, Planted] = weakref.WeakKeyDictionary()

# By bytes per element: the bits of a quiet NaN in float64, float32 and bfloat16, and a NaN in float16.
_WIDE = {8: 0x7FFDA5A5A5A5A5A5, 4: 0x7FE5A5A5, 2: 0x7FE5}
_FLOAT8 = 0x7F
_PERIOD = 4096


@frozen(kw_only=True)
class WriteReport:
    """
    What nobody wrote since the watch began. `partly` gives for each tensor its unwritten elements and its elements.

    Of a sharded tensor the numbers are those of this rank's part.
    """

    unwritten: tuple[str, ...] = ()
    partly: dict[str, tuple[int, int]] = field(factory=dict)


@frozen
class Planted:
    """The versions of the tensors of one byte per element after planting, by `id()`, with weak references to them."""

    versions: dict[int, tuple[Any, int]]


class WriteWatch:
    """The handle that `watch_writes` returns. Linting the model finds the watch by itself."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)

    def report(self) -> WriteReport:
        """Say which parameters and buffers nobody wrote since. Raises `RuntimeError` when the model is gone."""
        model = self._model()
        if model is None:
            raise RuntimeError("the watched model does not exist any more")
        planted = watch_of([model])
        unwritten, partly = [], {}
        for tensor in walk(model).tensors:
            local = _local(tensor.tensor)
            if local is None or not local.numel() or planted is None:
                continue
            count = unwritten_elements(local, planted, tensor.tensor)
            if count == local.numel():
                unwritten.append(tensor.fqn)
            elif count:
                partly[tensor.fqn] = (count, local.numel())
        return WriteReport(unwritten=tuple(sorted(unwritten, key=natural_key)), partly=partly)


def watch_writes(model: Any) -> WriteWatch:
    """
    Overwrite every parameter and buffer of `model` that has storage, so that what nobody writes afterwards is known.

    Call it after `to_empty` and before loading and initialising: what the tensors hold is lost. D405 reads the result
    when the model is linted; `report()` of what is returned gives it at once. Raises `TypeError` for what is not a
    module.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    versions: dict[int, tuple[Any, int]] = {}
    with torch.no_grad():
        for tensor in walk(model).tensors:
            local = _local(tensor.tensor)
            if local is not None and local.numel():
                _plant(local)
                if local.element_size() == 1:
                    versions[id(tensor.tensor)] = (weakref.ref(tensor.tensor), local._version)
    _WATCHES[model] = Planted(versions)
    return WriteWatch(model)


def watch_of(modules: Iterable[Any]) -> Planted | None:
    """The watch that was set on one of the modules; None when nobody watched."""
    for module in modules:
        try:
            watch = _WATCHES.get(module)
        except TypeError:  # modules may be unhashable
            continue
        if watch is not None:
            return watch
    return None


def unwritten_elements(local: Any, planted: Planted, tensor: Any) -> int:
    """How many elements of the (local part of a) tensor still hold the pattern."""
    import torch

    with torch.no_grad():
        bits = _bits(local)
        if local.element_size() > 1 or local.dtype.is_floating_point:
            same = bits == _pattern_number(local)
            return int((same.all(-1) if local.dtype.is_complex else same).sum())
        reference, version = planted.versions.get(id(tensor), (None, -1))
        if reference is None or reference() is not tensor or version != local._version:
            return 0
        same = bits.reshape(-1) == _alternating(bits.reshape(-1))
        return local.numel() if bool(same.all()) else 0


def _local(tensor: Any) -> Any:
    """The part that this rank holds, None for what has no storage that can be written."""
    local = read(tensor, "_local_tensor", tensor)
    if local is None or read(local, "is_meta", True) or read(local, "is_sparse", False):
        return None
    try:
        enough = local.untyped_storage().nbytes() >= local.numel() * local.element_size()
    except Exception:  # tensors without a storage
        return None
    return local.detach() if enough or not local.numel() else None


def _bits(local: Any) -> Any:
    import torch

    if local.dtype.is_complex:
        local = torch.view_as_real(local)
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    return local.view(kinds[local.element_size()])


def _pattern_number(local: Any) -> int:
    size = local.element_size() // (2 if local.dtype.is_complex else 1)
    return _FLOAT8 if size == 1 else _WIDE[size]


def _plant(local: Any) -> None:
    bits = _bits(local)
    if local.element_size() > 1 or local.dtype.is_floating_point:
        bits.fill_(_pattern_number(local))
    else:
        bits.copy_(_alternating(bits).reshape(bits.shape))


def _alternating(bits: Any) -> Any:
    """Zeros and ones without a short period, as many as `bits` has elements: valid for booleans too."""
    import torch

    period = torch.arange(_PERIOD, device=bits.device)
    period = ((period * 7919) >> 3) & 1
    count = -(-bits.numel() // _PERIOD)
    return period.to(torch.uint8).repeat(count)[: bits.numel()]
