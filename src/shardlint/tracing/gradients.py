"""Look at gradients and pending all-gathers: which are there, which are finite. One fused pass for each device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, field

from ..facts import GradientFacts, PendingGather, Unknown
from ..introspect.versioned import UNKNOWN, first, listed
from .units import LiveUnit, TracedParameter

OPTIMIZER_STEP, BACKWARD, END = "optimizer-step", "backward", "end"

_GATHERS = ("_all_gather_result", "allgather_handle", "allgather_output", "all_gather_handle", "all_gather_output")


@define
class _Seen:
    """What the looks found of one parameter; `unread` says why a gradient that was there could not be looked into."""

    present: int = 0
    accumulated: int = 0
    not_finite: list[int] = field(factory=list)
    zero: int = 0
    unread: str = ""


class Looks:
    """What every look found, parameter by parameter and unit by unit."""

    def __init__(self, parameters: list[tuple[TracedParameter, tuple[str, ...]]], units: list[LiveUnit]) -> None:
        self.parameters = parameters
        self.units = units
        self.moments: list[str] = []
        self.pending: list[PendingGather] = []
        self._seen: dict[int, _Seen] = {}

    def look(self, moment: str) -> None:
        """Read every trainable parameter's gradient and every unit's all-gathers, now."""
        number = len(self.moments)
        self.moments.append(moment)
        if moment != BACKWARD:  # an all-gather may outlive the backward, and be waited for before the step
            self.pending += [PendingGather(unit=unit.name, look=number) for unit in self.units if is_pending(unit)]
        if moment == END and BACKWARD in self.moments:
            return  # what came was read after each backward
        gradients = [
            (seen, gradient)
            for seen, gradient in self._gradients(at_step=moment == OPTIMIZER_STEP)
            if gradient is not None
        ]
        for (seen, _), size in zip(gradients, _magnitudes([gradient for _, gradient in gradients]), strict=True):
            seen.present += 1
            if isinstance(size, str):
                seen.unread = size
            elif not math.isfinite(size):
                seen.not_finite.append(number)
            elif size == 0.0:
                seen.zero += 1

    def _gradients(self, *, at_step: bool) -> Iterator[tuple[_Seen, Any]]:
        """Every trainable parameter with its gradient, None without one."""
        for index, (parameter, _) in enumerate(self.parameters):
            tensor = parameter.read()
            if not tensor.requires_grad:
                continue
            gradient = gradient_of(parameter, at_step=at_step)
            if gradient is None and tensor.numel() == 0:
                continue  # FSDP1 left nothing of it on this rank, so that its absence says nothing
            yield self._seen.setdefault(index, _Seen()), gradient

    def accumulated(self) -> None:
        """A backward is over: count the parameters that have a gradient now."""
        for seen, gradient in self._gradients(at_step=False):
            seen.accumulated += gradient is not None

    def accumulated_in(self, index: int) -> None:
        """The parameter got a gradient in a backward that goes on, and may lose it before its end."""
        seen = self._seen.setdefault(index, _Seen())
        seen.accumulated = max(seen.accumulated, 1)

    def facts(self, ran: set[int], unobserved: set[int]) -> tuple[GradientFacts, ...]:
        """The gradients as facts. `ran` and `unobserved` are ids of modules that were called, or cannot be watched."""
        return tuple(
            GradientFacts(
                fqn=parameter.fqn,
                aliases=parameter.names,
                units=units,
                present=seen.present,
                not_finite=Unknown(seen.unread) if seen.unread else tuple(seen.not_finite),
                zero=Unknown(seen.unread) if seen.unread else seen.zero,
                module_ran=_ran(parameter, ran, unobserved),
                accumulated=seen.accumulated,
            )
            for index, (parameter, units) in enumerate(self.parameters)
            if (seen := self._seen.get(index)) is not None
        )


def _ran(parameter: TracedParameter, ran: set[int], unobserved: set[int]) -> bool | None:
    numbers = {id(holder) for holder in parameter.holders}
    if numbers & ran:
        return True
    return None if not numbers or numbers & unobserved else False


def gradient_of(parameter: TracedParameter, *, at_step: bool = False) -> Any:
    """
    The local part of the parameter's gradient, None when there is none.

    `.grad`, a main gradient, and what accumulates unsharded while gradients are not synchronised; not the latter
    `at_step`, because no optimizer sees it.
    """
    tensor, record = parameter.read(), parameter.record
    gradient = tensor.grad
    if gradient is not None and record is None and not gradient.is_sparse and not hasattr(gradient, "_local_tensor"):
        return gradient
    if gradient is None and record is not None and not at_step:
        values = vars(record) if hasattr(record, "__dict__") else {}
        gradient = values.get("unsharded_accumulated_grad")
        if gradient is None and values.get("_unsharded_param") is not None:
            gradient = values["_unsharded_param"].grad
    if gradient is None:
        main = first(tensor, "main_grad")
        gradient = None if main is UNKNOWN else main
    if gradient is None:
        return None
    local = first(gradient, "_local_tensor")
    gradient = gradient if local is UNKNOWN else local
    return gradient.coalesce()._values() if gradient.is_sparse else gradient


def _magnitudes(gradients: list[Any]) -> list[float | str]:
    """
    A norm of each gradient: not finite exactly when it holds NaN or Inf, zero exactly when it is zero everywhere.

    The Euclidean norm is fast, and may overflow or underflow; of what it leaves open the maximum norm decides. Where
    there is none, the text says why.
    """
    results = _norms(gradients, range(len(gradients)), 2.0)
    unsure = [
        index
        for index, value in results.items()
        if not isinstance(value, str) and (value == 0.0 or not math.isfinite(value))
    ]
    results |= _norms(gradients, unsure, math.inf)
    return [results[index] for index in range(len(gradients))]


def _norms(gradients: list[Any], indices: Iterable[int], order: float) -> dict[int, float | str]:
    groups: dict[tuple[Any, Any], list[int]] = {}
    results: dict[int, float | str] = {}
    for index in indices:
        gradient = gradients[index]
        if gradient.device.type == "meta":
            results[index] = "its gradient is on the meta device"
        elif gradient.numel():
            groups.setdefault((gradient.device, gradient.dtype), []).append(index)
        else:
            results[index] = 0.0
    for same_kind in groups.values():
        results.update(zip(same_kind, _fused([gradients[index] for index in same_kind], order), strict=True))
    return results


def _fused(gradients: list[Any], order: float) -> list[float | str]:
    """The norms of gradients of one kind, in one pass."""
    import torch

    try:
        with torch.no_grad():
            return list(torch.stack(list(torch._foreach_norm(gradients, order))).tolist())
    except (NotImplementedError, RuntimeError):  # a dtype without arithmetic: looking must not end the step
        return [f"its gradient is of {gradients[0].dtype}, which cannot be looked into"] * len(gradients)


def is_pending(unit: LiveUnit) -> bool:
    """Whether an all-gather of the unit was started and nobody waited for it."""
    return any(_holds_gather(place) for place in _places(unit))


def _places(unit: LiveUnit) -> Iterable[Any]:
    """Where frameworks keep an all-gather: the parameter group, a fused group, the context of each parameter."""
    for group in unit.groups:
        yield group
        yield first(group, "param_group")
        for param in listed(first(group, "hsdp_params")):
            yield first(param, "allgather_comm_ctx")


def _holds_gather(place: Any) -> bool:
    handles = (first(place, name) for name in _GATHERS)
    return any(handle is not UNKNOWN and handle is not None for handle in handles)
