"""The `values` section: one cheap pass over every tensor, a second one only over those that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import evolve

from ..facts import Facts, SkippedTensor, TensorValues, ValuesFacts
from ..introspect.attributes import read
from .derived import derived_buffers
from .live_tensors import LiveTensor, live_buffers, live_parameters
from .precision import critical_tensors
from .sharding import OwnershipTables
from .write_watch import Planted, unwritten_elements, watch_of

_PLAIN = ("Tensor", "Parameter", "FlatParameter", "Buffer", "UninitializedBuffer")
_SAMPLE = 1024  # elements


def values_facts(tables: OwnershipTables, facts: Facts, checkpoint: Path | None = None) -> ValuesFacts | None:
    """
    Return the statistics of everything that the model holds on this rank; None when everything is on meta.

    `facts` are the sections so far: what classes declare and where the checkpoint's tensors lie. Nothing is written,
    and no random number is drawn that the caller could miss.
    """
    import torch

    planted = watch_of(module.module for module in tables.walk.modules)
    with torch.no_grad():
        look = _Look(planted)
        for live in (*live_parameters(tables), *live_buffers(tables)):
            look.at(live)
        if look.meta and not look.seen:
            return None
        tensors = look.finish()
        return ValuesFacts(
            tensors=tensors,
            skipped=tuple(look.skipped),
            derived=derived_buffers(tables.walk),
            critical=critical_tensors(facts, checkpoint),
            watched=planted is not None,
        )


class _Look:
    """Extremes are left on the device until the end, where one transfer brings those of a device together."""

    def __init__(self, planted: Planted | None) -> None:
        self.planted = planted
        self.seen: list[tuple[LiveTensor, Any]] = []
        self.extremes: list[Any] = []
        self.skipped: list[SkippedTensor] = []
        self.others: list[TensorValues] = []
        self.meta = False

    def at(self, live: LiveTensor) -> None:
        import torch

        local = read(live.tensor, "_local_tensor", live.tensor)
        if read(local, "is_meta", False):
            self.meta = True
            return
        reason = _unreadable(local)
        if reason:
            self.skipped.append(SkippedTensor(fqn=live.names[0], reason=reason))
            return
        local = local.detach()
        if not local.numel():
            self.others.append(TensorValues(fqn=live.names[0], elements=0))
            return
        if local.dtype.is_complex:
            self.without_extremes(live, local, "it is complex")
            return
        try:
            low, high = torch.aminmax(local)
        except (RuntimeError, NotImplementedError):
            self.without_extremes(live, local, f"{local.dtype} has no extremes")
            return
        self.seen.append((live, local))
        self.extremes.append((low, high))

    def without_extremes(self, live: LiveTensor, local: Any, reason: str) -> None:
        """Skip the tensor, but for what the watch knows."""
        self.skipped.append(SkippedTensor(fqn=live.names[0], reason=reason))
        if self.planted is not None:
            count = unwritten_elements(local, self.planted, live.tensor)
            self.others.append(TensorValues(fqn=live.names[0], elements=local.numel(), unwritten=count))

    def finish(self) -> tuple[TensorValues, ...]:
        statistics = [
            self.statistics(live, local, low, high)
            for (live, local), (low, high) in zip(self.seen, _numbers(self.extremes), strict=True)
        ]
        return (*statistics, *self.others)

    def statistics(self, live: LiveTensor, local: Any, low: float, high: float) -> TensorValues:
        facts = TensorValues(
            fqn=live.names[0],
            elements=local.numel(),
            constant=low == high,
            magnitude=_magnitude(local),
        )
        if math.isfinite(low) and math.isfinite(high):
            facts = evolve(facts, minimum=low, maximum=high)
        else:
            facts = evolve(facts, **_not_finite(local))
        return facts if self.planted is None else evolve(facts, unwritten=self.unwritten(live, local, facts))

    def unwritten(self, live: LiveTensor, local: Any, facts: TensorValues) -> int:
        """Of floating tensors only those with NaNs can hold the pattern: the others need no second look."""
        assert self.planted is not None
        if local.dtype.is_floating_point and not facts.nan:
            return 0
        return unwritten_elements(local, self.planted, live.tensor)


def _unreadable(local: Any) -> str:
    """Why the values of a tensor are not looked at; empty when they are."""
    if type(local).__name__ not in _PLAIN or not type(local).__module__.startswith("torch"):
        return f"a {type(local).__name__}, which is not a plain tensor"
    try:
        if local.layout is not _strided():
            return f"its memory layout is {local.layout}"
        if local.untyped_storage().nbytes() < local.numel() * local.element_size() and not _expanded(local):
            return "its storage was freed"
    except Exception as error:  # tensors of other backends
        return f"it cannot be read: {type(error).__name__}"
    return ""


def _strided() -> Any:
    import torch

    return torch.strided


def _expanded(local: Any) -> bool:
    return local.untyped_storage().nbytes() > 0 and 0 in local.stride()


def _numbers(extremes: Iterable[tuple[Any, Any]]) -> list[tuple[float, float]]:
    """The extremes as numbers, with one transfer for each device."""
    import torch

    pairs = list(extremes)
    numbers: list[tuple[float, float]] = [(0.0, 0.0)] * len(pairs)
    by_device: dict[Any, list[int]] = {}
    for index, (low, _) in enumerate(pairs):
        by_device.setdefault(low.device, []).append(index)
    for indices in by_device.values():
        flat = torch.stack([extreme.to(torch.float64) for index in indices for extreme in pairs[index]]).tolist()
        for place, index in enumerate(indices):
            numbers[index] = (flat[2 * place], flat[2 * place + 1])
    return numbers


def _not_finite(local: Any) -> dict[str, Any]:
    import torch

    nan = int(torch.isnan(local).sum())
    positive, negative = int(torch.isposinf(local).sum()), int(torch.isneginf(local).sum())
    kept = local[torch.isfinite(local)]
    low, high = torch.aminmax(kept) if kept.numel() else (None, None)
    return {
        "nan": nan,
        "positive_infinite": positive,
        "negative_infinite": negative,
        "minimum": None if low is None else float(low),
        "maximum": None if high is None else float(high),
        "constant": local.numel() in (positive, negative),
    }


def _magnitude(local: Any) -> float | None:
    """The median absolute value of a sample in regular steps, of narrow floating tensors."""
    import torch

    if local.dtype not in (torch.bfloat16, torch.float16) or not local.is_contiguous():
        return None
    flat = local.view(-1)
    sample = flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].float().abs()
    value = float(sample.median())
    return value if math.isfinite(value) else None
