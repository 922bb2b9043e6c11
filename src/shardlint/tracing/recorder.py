"""What the hooks of a trace write down, in order, while the step runs. No tensor is read here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..facts import DirectUse, StepFacts, UnitEvent

EVENT_LIMIT = 200_000
"""Events that are kept; the others are counted."""

_DEPTH = 4


def _graph_task_reader() -> Callable[[], int]:
    import torch

    reader = getattr(torch._C, "_current_graph_task_id", None)
    return reader if callable(reader) else lambda: -1


class _GraphTask:
    """The number of the backward pass that this thread is in, -1 outside of one. Bound to torch when first asked."""

    def __init__(self) -> None:
        self.read: Callable[[], int] | None = None

    def __call__(self) -> int:
        read = self.read
        if read is None:
            read = self.read = _graph_task_reader()
        return read()

    def bound(self) -> Callable[[], int]:
        """Torch's own function, for hooks that run often."""
        self()
        assert self.read is not None
        return self.read


graph_task = _GraphTask()


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors in the outputs of a module: mappings (model outputs among them) and sequences are looked into."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEPTH:
        items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for element in items:
            yield from tensors_in(element, depth + 1)


class Recorder:
    """The growing lists of one trace, and the stack of units that are running."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int, str]] = []
        self.steps: list[StepFacts] = []
        self.stack: list[str] = []
        self.raised_in = ""
        self.dropped = 0
        self.backwards = False
        self.inner_runs: dict[str, dict[str, None]] = {}
        self.while_sharded: dict[str, dict[str, None]] = {}
        self.direct_uses: dict[tuple[str, str], DirectUse] = {}
        self.regions: list[tuple[bool, str]] = []
        self.cut_off: set[str] = set()
        self.checkpointed: dict[str, str] = {}
        self.ran: set[int] = set()
        self.discarded: dict[str, int] = {}
        self.guessed: dict[str, bool] = {}
        self.gathering = 0
        self.root_depth = 0
        self.backward_ended: Callable[[], None] | None = None
        self._open_backward = -1
        self._recomputed: set[tuple[str, int]] = set()

    @property
    def step(self) -> int:
        """The number of the micro-step that is running; 0 before the first forward of the root."""
        return max(0, len(self.steps) - 1)

    @property
    def running(self) -> str:
        """The innermost unit that is running, empty outside of all."""
        return self.stack[-1] if self.stack else ""

    @property
    def in_forward(self) -> bool:
        """Whether the root or some unit is running."""
        return bool(self.stack or self.root_depth)

    def event(self, kind: str, unit: str, step: int | None = None, within: str = "") -> None:
        """Write an event down, up to the limit."""
        if len(self.events) >= EVENT_LIMIT:
            self.dropped += 1
            return
        self.events.append((kind, unit, self.step if step is None else step, within))

    def unit_events(self) -> tuple[UnitEvent, ...]:
        """The events as facts."""
        return tuple(
            UnitEvent(kind=kind, unit=unit, step=step, within=within) for kind, unit, step, within in self.events
        )

    def root_forward(self, fields: tuple[str, ...], with_gradients: bool, functional: bool) -> None:
        """A new micro-step begins, unless this is recomputation."""
        if graph_task() == -1:
            self._open_backward = -1  # one that raised never came to its end
            index = len(self.steps)
            step = StepFacts(index=index, fields=fields, with_gradients=with_gradients, functional=functional)
            self.steps.append(step)

    def enter(self, unit: str) -> None:
        """The unit's forward begins."""
        task = graph_task()
        if task == -1:
            self.event("forward", unit)
        else:
            self.recompute(unit, task)
        if self.regions:
            self._in_region(unit, *self.regions[-1])
        self.stack.append(unit)

    def recompute(self, unit: str, task: int) -> None:
        """The unit, or a part of it, is recomputed: one event for each backward pass."""
        self.backwards = True
        if (unit, task) not in self._recomputed:
            self._recomputed.add((unit, task))
            self.event("recompute", unit)
            self.checkpointed.setdefault(unit, "unknown")

    def _in_region(self, unit: str, needs_gradient: bool, _within: str) -> None:
        self.checkpointed[unit] = "reentrant"
        if not needs_gradient:
            self.cut_off.add(unit)

    def leave(self, unit: str, output: Any) -> None:
        """The unit's forward ended, with `output` or (None) with an error."""
        if unit in self.stack:
            while self.stack.pop() != unit:
                pass
        if output is None:
            if graph_task() == -1:
                self.raised_in = self.raised_in or unit
            return
        self.raised_in = ""
        import torch

        if torch.is_grad_enabled():
            self._watch_backward(unit, output)

    def _watch_backward(self, unit: str, output: Any) -> None:
        hook = self._backward_hook(unit, self.step)
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(hook)

    def _backward_hook(self, unit: str, step: int) -> Callable[[Any], None]:
        seen: set[int] = set()

        def began(_: Any) -> None:
            task = graph_task()
            if task not in seen:
                seen.add(task)
                self.in_backward(task)
                self.event("backward", unit, step)

        return began

    def in_backward(self, task: int) -> None:
        """
        A backward is under way: have `backward_ended` called when it is over, once for the outermost one.

        Sharding frameworks finish gradients in callbacks of the engine, in the order in which they asked for them; the
        callback here asks once more when its turn comes, and so stands behind all of them.
        """
        self.backwards = True
        if self.backward_ended is None or self._open_backward != -1:
            return
        self._open_backward = task
        import torch

        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._over))

    def _over(self) -> None:
        self._open_backward = -1
        if self.backward_ended is not None:
            self.backward_ended()

    def holder_hook(self, number: int, name: str, units: tuple[str, ...]) -> Callable[[Any, Any], None]:
        """
        The hook for a module that holds parameters: it ran within its unit, or past it; in the forward, or again.

        It runs for every such module of the model, so it does as little as possible.
        """
        ran, stack, inner, task_of = self.ran, self.stack, self.inner_runs, graph_task.bound()

        def holder_ran(_: Any, args: Any) -> None:
            ran.add(number)
            task = task_of()
            for unit in units:
                if task != -1:
                    self.recompute(unit, task)
                elif unit not in stack:
                    inner.setdefault(unit, {})[name] = None

        return holder_ran
