"""Shared states of a step: who produced and who consumed them, by declaration or by word of the model's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..analysis.contract_globs import first_match
from ..contract import Contract, SharedState
from ..facts import StateEvent
from ..introspect.walk import Walk
from .recorder import Recorder, graph_task

STATE_LIMIT = 50_000
"""Events of shared states that are kept; the others are counted, and reported."""


class StateLog:
    """The events of shared states, in order."""

    def __init__(self, recorder: Recorder, limit: int = STATE_LIMIT) -> None:
        self.recorder = recorder
        self.limit = limit
        self.events: list[StateEvent] = []
        self.dropped = 0

    def add(self, kind: str, state: str, by: str) -> None:
        """Write one event down, up to the limit."""
        if len(self.events) >= self.limit:
            self.dropped += 1
            return
        recompute = graph_task() != -1
        event = StateEvent(kind=kind, state=state, by=by, step=self.recorder.step, recompute=recompute)
        self.events.append(event)


def watch_declared(contract: Contract, walk: Walk, log: StateLog) -> Callable[[], None]:
    """
    Follow the producers and consumers that the contract declares, until the returned function is called.

    A producer has produced when its forward ends, a consumer consumes when its forward begins. Recomputation may stop
    before a forward ends: there a producer produces again as soon as it begins.
    """
    handles = []
    for state in contract.shared_state:
        for module in walk.modules:
            if module.wrapper is None:
                handles += _watch(state, module.module, module.names, log)

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def _watch(state: SharedState, module: Any, names: list[str], log: StateLog) -> list[Any]:
    handles = []
    name = names[0]

    def produced(again: bool) -> None:
        if again == (graph_task() != -1):
            log.add("produced", state.name, name)

    if first_match(state.producers, names):
        handles.append(module.register_forward_pre_hook(lambda *_: produced(True)))
        handles.append(module.register_forward_hook(lambda *_: produced(False)))
    if first_match(state.consumers, names):
        handles.append(module.register_forward_pre_hook(lambda *_: log.add("consumed", state.name, name), prepend=True))
    return handles
