"""Notice optimizer steps of a model: torch's optimizers wherever they are called from, and others by their `step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..introspect.versioned import UNKNOWN, first, listed


def watch_steps(optimizer: Any, tensors: set[int], before_step: Callable[[], None]) -> Callable[[], None]:
    """
    Call `before_step` before every optimizer step that concerns the model, until the returned function is called.

    A torch optimizer concerns the model when it holds one of `tensors` (ids), or is one of `optimizer`.
    """
    from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

    given = list(_all(optimizer))
    numbers = {id(candidate) for candidate in given}

    def seen(stepping: Any, args: Any, kwargs: Any) -> None:
        groups = listed(first(stepping, "param_groups"))
        if id(stepping) in numbers or any(
            id(parameter) in tensors for group in groups for parameter in group.get("params", ())
        ):
            before_step()

    handle = register_optimizer_step_pre_hook(seen)
    strangers = [candidate for candidate in given if not isinstance(candidate, Optimizer) and not _has_inner(candidate)]
    undo = [_around_step(stranger, before_step) for stranger in strangers]

    def stop() -> None:
        handle.remove()
        for function in undo:
            function()

    return stop


def _inner(optimizer: Any) -> list[Any]:
    several = listed(first(optimizer, "chained_optimizers")) or listed(first(optimizer, "optimizers"))
    single = first(optimizer, "optimizer")
    return several or ([] if single is UNKNOWN or single is None else [single])


def _has_inner(optimizer: Any) -> bool:
    return bool(_inner(optimizer))


def _all(optimizer: Any, depth: int = 0) -> Any:
    """The optimizer, those that it chains, and those inside its wrappers."""
    if optimizer is None or depth > 4:
        return
    if isinstance(optimizer, (list, tuple)):
        for inner in optimizer:
            yield from _all(inner, depth + 1)
        return
    yield optimizer
    for inner in _inner(optimizer):
        yield from _all(inner, depth + 1)


def _around_step(optimizer: Any, before_step: Callable[[], None]) -> Callable[[], None]:
    """Stand in front of the `step` of an optimizer that is none of torch's."""
    inner = first(optimizer, "step")
    if not callable(inner) or not hasattr(optimizer, "__dict__") or "step" in vars(optimizer):
        return lambda: None

    def step(*args: Any, **kwargs: Any) -> Any:
        before_step()
        return inner(*args, **kwargs)

    optimizer.step = step

    def undo() -> None:
        del optimizer.step

    return undo
