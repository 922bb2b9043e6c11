"""Notice optimizer steps of a model: torch's optimizers wherever they are called from, and others by their `step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..introspect.versioned import UNKNOWN, first, listed


def watch_steps(optimizer: Any, tensors: set[int], at_step: Callable[[], None]) -> Callable[[], None]:
    """
    Call `at_step` at every optimizer step that concerns the model, until the returned function is called.

    It is called before the step, or after one that is given a closure, because the closure makes the gradients. A step
    within a step counts once. A torch optimizer concerns the model when it holds one of `tensors` (ids), or is one of
    `optimizer`.
    """
    from torch.optim.optimizer import (
        Optimizer,
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    given = list(_all(optimizer))
    numbers = {id(candidate) for candidate in given}
    steps = _Steps(at_step)

    def concerns(stepping: Any) -> bool:
        groups = listed(first(stepping, "param_groups"))
        return id(stepping) in numbers or any(
            id(parameter) in tensors for group in groups for parameter in group.get("params", ())
        )

    def before(stepping: Any, args: Any, kwargs: Any) -> None:
        if concerns(stepping):
            steps.begin(has_closure(args[1:], kwargs))

    def after(stepping: Any, args: Any, kwargs: Any) -> None:
        if concerns(stepping):
            steps.end(has_closure(args[1:], kwargs))

    handles = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))
    strangers = [candidate for candidate in given if not isinstance(candidate, Optimizer) and not _has_inner(candidate)]
    undo = [_around_step(stranger, steps) for stranger in strangers]

    def stop() -> None:
        for handle in handles:
            handle.remove()
        for function in undo:
            function()

    return stop


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a step was given a closure: a callable as its first argument, or by name."""
    return callable(kwargs.get("closure")) or any(callable(argument) for argument in args[:1])


class _Steps:
    """The steps that are under way: only the outermost one is looked at."""

    def __init__(self, at_step: Callable[[], None]) -> None:
        self._at_step = at_step
        self._depth = 0

    def begin(self, closure: bool) -> None:
        """A step begins."""
        self._depth += 1
        if self._depth == 1 and not closure:
            self._at_step()

    def end(self, closure: bool) -> None:
        """A step is over."""
        if self._depth == 1 and closure:
            self._at_step()
        self._depth = max(0, self._depth - 1)


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


def _around_step(optimizer: Any, steps: _Steps) -> Callable[[], None]:
    """Stand in front of the `step` of an optimizer that is none of torch's."""
    inner = first(optimizer, "step")
    if not callable(inner) or not hasattr(optimizer, "__dict__") or "step" in vars(optimizer):
        return lambda: None

    def step(*args: Any, **kwargs: Any) -> Any:
        closure = has_closure(args, kwargs)
        steps.begin(closure)
        try:
            return inner(*args, **kwargs)
        finally:
            steps.end(closure)

    optimizer.step = step

    def undo() -> None:
        del optimizer.step

    return undo
