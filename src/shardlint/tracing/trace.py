"""The trace itself: a context manager around one or more training steps."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ..contract import Contract
from ..diagnostics import describe_error
from ..facts import RuntimeFacts, TracedUnit
from ..introspect.walk import walk
from .direct_uses import use_mode
from .gradients import BACKWARD, END, OPTIMIZER_STEP, Looks
from .hooks import HookSet
from .optimizers import watch_steps
from .outside import OutsideTree, watch_outside
from .recorder import Recorder, graph_task
from .reentrant import watch_reentrant
from .shared_state import STATE_LIMIT, StateLog, watch_declared
from .units import LiveUnit, TracedParameter, Tree, find_units, parameters_of


class TraceError(RuntimeError):
    """A trace that is used out of order: entered twice, or asked for facts before it ended."""


def trace(
    model: Any, optimizer: Any = None, *, contract: Contract | None = None, state_limit: int = STATE_LIMIT
) -> Trace:
    """
    Trace what runs within `with shardlint.trace(model, optimizer) as t:`, one or more training steps.

    `optimizer` (one, a list, a chain) says which steps concern the model; torch optimizers that hold its parameters
    are noticed without it. `contract` declares shared states, whose producers and consumers are then followed.
    `state_limit` bounds the events of shared states that are kept. Nothing that is computed changes, and nothing is
    left behind. Raises `TypeError` for a model that is not a module.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module to trace, got {type(model).__name__}")
    return Trace(model, optimizer, contract, state_limit)


class Trace:
    """
    A trace of training steps; see `trace`.

    After the block `runtime` (or `facts()`) is the `runtime` section of the facts. When the block raised, the error
    goes on and the facts hold what was seen until then.
    """

    def __init__(self, model: Any, optimizer: Any, contract: Contract | None, state_limit: int) -> None:
        self.model = model
        self._optimizer = optimizer
        self._contract = contract
        self._recorder = Recorder()
        self._states = StateLog(self._recorder, state_limit)
        self._result: RuntimeFacts | None = None
        self._hooks: HookSet | None = None
        self._units: list[LiveUnit] = []
        self._looks = Looks([], [])
        self._outside = OutsideTree()

    def __enter__(self) -> Self:
        if self._hooks is not None or self._result is not None:
            raise TraceError("a trace is entered once: call shardlint.trace() again for another one")
        tree = Tree(walk(self.model))
        self._units = find_units(tree)
        self._looks = Looks(parameters_of(self._units), self._units)
        self._hooks = HookSet(tree, self._recorder)
        try:
            self._attach(self._hooks, tree)
        except BaseException:
            self._hooks.remove()
            raise
        return self

    def _attach(self, hooks: HookSet, tree: Tree) -> None:
        hooks.note_targets(self._units)
        for unit in self._units:
            hooks.watch_unit(unit)
        hooks.watch_holders(self._units)
        hooks.watch_root()
        hooks.add(watch_reentrant(self._recorder))
        if self._contract is not None:
            hooks.add(watch_declared(self._contract, tree.walk, self._states))
        tensors = {id(parameter.read()) for parameter, _ in self._looks.parameters}
        hooks.add(watch_steps(self._optimizer, tensors, lambda: self._looks.look(OPTIMIZER_STEP)))
        self._recorder.backward_ended = self._backward_ended
        for index, (parameter, _) in enumerate(self._looks.parameters):
            self._watch_accumulation(hooks, index, parameter)
        self._outside = watch_outside(tree, self._recorder, hooks)
        sharded = self._sharded()
        if sharded and not any(module.wrapper == "compile" for module in tree.walk.modules) and not tree.opaque:
            mode = use_mode(self._recorder, sharded)
            mode.__enter__()
            hooks.add(lambda: mode.__exit__(None, None, None))

    def _watch_accumulation(self, hooks: HookSet, index: int, parameter: TracedParameter) -> None:
        """Notice gradients of plain parameters when they are accumulated: a loop may use and clear them at once."""
        tensor = parameter.read()
        if parameter.record is not None or not (tensor.requires_grad and tensor.is_leaf):
            return

        def accumulated(_: Any) -> None:
            self._looks.accumulated_in(index)
            self._recorder.in_backward(graph_task())

        hooks.add(tensor.register_post_accumulate_grad_hook(accumulated).remove)

    def _backward_ended(self) -> None:
        """Look at values only while no optimizer is known that will be looked at when it steps."""
        looks = self._looks
        looks.accumulated()
        if self._optimizer is None and OPTIMIZER_STEP not in looks.moments:
            looks.look(BACKWARD)

    def _sharded(self) -> dict[int, tuple[str, str]]:
        """Unit and name of each parameter that FSDP2 shards, by id."""
        return {
            id(parameter.read()): (unit.name, parameter.fqn)
            for unit in self._units
            if unit.kind in ("fsdp2", "hsdp")
            for parameter in unit.parameters
            if parameter.record is not None
        }

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._hooks is not None
        self._recorder.backward_ended = None
        self._hooks.remove()
        if OPTIMIZER_STEP not in self._looks.moments:
            self._looks.look(END)
        self._result = self._facts(self._hooks, describe_error(error) if error is not None else "")

    def produced(self, state: str, by: Any = None) -> None:
        """Say that a shared state was produced, by a module (or its FQN); else by the unit that is running."""
        self._states.add("produced", state, self._name(by))

    def consumed(self, state: str, by: Any = None) -> None:
        """Say that a shared state was consumed, by a module (or its FQN); else by the unit that is running."""
        self._states.add("consumed", state, self._name(by))

    def _name(self, by: Any) -> str:
        if isinstance(by, str):
            return by
        if by is None or self._hooks is None:
            return self._recorder.running
        return self._hooks.tree.name(by)

    @property
    def runtime(self) -> RuntimeFacts:
        """The `runtime` section of the facts. Raises `TraceError` before the block ended."""
        if self._result is None:
            raise TraceError("the trace has not ended: ask for its facts after the `with` block")
        return self._result

    def facts(self) -> RuntimeFacts:
        """The same as `runtime`."""
        return self.runtime

    def _facts(self, hooks: HookSet, raised: str) -> RuntimeFacts:
        recorder, looks = self._recorder, self._looks
        return RuntimeFacts(
            steps=tuple(recorder.steps),
            units=tuple(self._unit_facts(unit, hooks) for unit in self._units),
            events=recorder.unit_events(),
            gradients=looks.facts(recorder.ran, hooks.unwatched),
            looks=tuple(looks.moments),
            pending=tuple(looks.pending),
            direct_uses=tuple(recorder.direct_uses.values()),
            state_events=tuple(self._states.events),
            backwards=recorder.backwards,
            raised=raised,
            raised_in=recorder.raised_in if raised else "",
            dropped=recorder.dropped,
            state_dropped=self._states.dropped,
            hidden_gradients=tuple(self._outside.gradients),
            outside=tuple(self._outside.called),
        )

    def _unit_facts(self, unit: LiveUnit, hooks: HookSet) -> TracedUnit:
        recorder, name = self._recorder, unit.name
        return TracedUnit(
            name=name,
            kind=unit.kind,
            modules=unit.module_names,
            parameters=tuple(parameter.fqn for parameter in unit.parameters),
            forward_prefetch=self._targets(unit, "forward", hooks),
            backward_prefetch=self._targets(unit, "backward", hooks),
            observed=name not in hooks.unobserved,
            why_unobserved=hooks.unobserved.get(name, ""),
            inner_runs=tuple(recorder.inner_runs.get(name, ())),
            while_sharded=tuple(recorder.while_sharded.get(name, ())),
            checkpointed=_checkpointed(unit, recorder),
            cut_off=name in recorder.cut_off,
            discarded=recorder.discarded.get(name, 0),
        )

    def _targets(self, unit: LiveUnit, direction: str, hooks: HookSet) -> tuple[str, ...]:
        if unit.prefetch is None:
            return ()
        names = {id(module): live_unit.name for live_unit in self._units for module in live_unit.modules}
        return tuple(names.get(id(module)) or hooks.tree.name(module) for module in unit.prefetch(direction))


def _checkpointed(unit: LiveUnit, recorder: Recorder) -> str:
    """How the unit's activations are checkpointed, as far as it was seen or its modules say."""
    seen = recorder.checkpointed.get(unit.name, "")
    return "non-reentrant" if seen == "unknown" else seen
