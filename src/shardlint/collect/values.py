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
from .parts import Parts, UnreadError, parts_of
from .precision import critical_tensors
from .sharding import OwnershipTables
from .stored_constants import with_stored
from .uninitialised import uninitialised
from .write_watch import Planted, unwritten_elements, watch_of

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
        tensors = tuple(with_stored(look.finish(), facts, checkpoint))
        return ValuesFacts(
            tensors=tensors,
            skipped=tuple(look.skipped),
            derived=derived_buffers(tables.walk),
            critical=critical_tensors(facts, checkpoint),
            watched=planted is not None,
            uninitialised=() if planted is not None else uninitialised(tables.walk, facts),
        )


class _Look:
    """Extremes are left on the device until the end, where one transfer brings those of a device together."""

    def __init__(self, planted: Planted | None) -> None:
        self.planted = planted
        self.seen: list[tuple[LiveTensor, Any, Parts]] = []
        self.extremes: list[tuple[Any, Any]] = []
        self.skipped: list[SkippedTensor] = []
        self.empty: list[TensorValues] = []
        self.meta = False

    def at(self, live: LiveTensor) -> None:
        import torch

        local = read(live.tensor, "_local_tensor", live.tensor)
        if read(local, "is_meta", False):
            self.meta = True
            return
        try:
            parts = parts_of(local)
            extremes = [torch.aminmax(part) for part in parts.tensors if part.numel()]
        except (UnreadError, RuntimeError, NotImplementedError) as error:
            reason = str(error) if isinstance(error, UnreadError) else f"{local.dtype} has no extremes"
            self.skipped.append(SkippedTensor(fqn=live.names[0], reason=reason))
            return
        if extremes:
            self.seen.append((live, local, parts))
            self.extremes.extend(extremes)
        else:
            self.empty.append(TensorValues(fqn=live.names[0], elements=local.numel(), **_stored_nowhere(parts)))

    def finish(self) -> tuple[TensorValues, ...]:
        numbers = iter(_numbers(self.extremes))
        statistics = [
            self.statistics(live, local, parts, [next(numbers) for part in parts.tensors if part.numel()])
            for live, local, parts in self.seen
        ]
        return (*statistics, *self.empty)

    def statistics(
        self, live: LiveTensor, local: Any, parts: Parts, extremes: list[tuple[float, float]]
    ) -> TensorValues:
        facts = TensorValues(fqn=live.names[0], elements=local.numel(), magnitude=_magnitude(local, parts))
        facts = _with_extremes(facts, parts, extremes)
        if local.dtype.is_complex and _watched(parts):
            facts = _of_complex(facts, local.detach())
        if parts.missing:
            facts = _with_zeros(facts)
        if self.planted is None or not _watched(parts):
            return facts
        return evolve(facts, unwritten=self.unwritten(live, local, facts))

    def unwritten(self, live: LiveTensor, local: Any, facts: TensorValues) -> int:
        """Of floating tensors only those with NaNs can hold the pattern: the others need no second look."""
        assert self.planted is not None
        if local.dtype.is_floating_point and not facts.nan:
            return 0
        return unwritten_elements(local.detach(), self.planted, live.tensor)


def _watched(parts: Parts) -> bool:
    """Whether a watch could have planted its pattern: in the memory of a plain tensor only."""
    return parts.whole and not parts.missing


def _of_complex(facts: TensorValues, local: Any) -> TensorValues:
    """The statistics of the halves, where what counts is the pair."""
    import torch

    constant = bool((local == local.reshape(-1)[0]).all())
    return evolve(facts, constant=constant, nan=int(torch.isnan(local).sum()) if facts.nan else 0)


def _stored_nowhere(parts: Parts) -> dict[str, Any]:
    """What is known of a sparse tensor without a single stored element."""
    return {"minimum": 0.0, "maximum": 0.0, "constant": True} if parts.missing else {}


def _with_zeros(facts: TensorValues) -> TensorValues:
    """The statistics with the elements that are zero and stored nowhere."""
    low, high = min(facts.minimum or 0.0, 0.0), max(facts.maximum or 0.0, 0.0)
    return evolve(facts, minimum=low, maximum=high, constant=facts.finite and low == high)


def _with_extremes(facts: TensorValues, parts: Parts, extremes: list[tuple[float, float]]) -> TensorValues:
    """The statistics over all parts: of codes and scales together, the extremes are those of the scales."""
    filled = [part for part in parts.tensors if part.numel()]
    pairs = list(zip(filled, extremes, strict=True))
    numbers = [(part, pair) for part, pair in pairs if part.dtype.is_floating_point or parts.whole]
    counts: dict[str, Any] = {"nan": 0, "positive_infinite": 0, "negative_infinite": 0}
    lows: list[float | None] = []
    highs: list[float | None] = []
    constant = all(low == high for _, (low, high) in pairs)
    for part, (low, high) in numbers:
        if math.isfinite(low) and math.isfinite(high):
            lows.append(low)
            highs.append(high)
            continue
        found = _not_finite(part)
        constant = found.pop("constant") and len(pairs) == 1
        lows += [found.pop("minimum")]
        highs += [found.pop("maximum")]
        counts = {name: count + found[name] for name, count in counts.items()}
    return evolve(
        facts,
        constant=constant,
        minimum=min((low for low in lows if low is not None), default=None),
        maximum=max((high for high in highs if high is not None), default=None),
        **counts,
    )


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


def _magnitude(local: Any, parts: Parts) -> float | None:
    """The median absolute value of a sample in regular steps, of narrow floating tensors."""
    import torch

    if not _watched(parts) or local.dtype not in (torch.bfloat16, torch.float16) or not local.is_contiguous():
        return None
    flat = local.detach().view(-1)
    sample = flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].float().abs()
    value = float(sample.median())
    return value if math.isfinite(value) else None
