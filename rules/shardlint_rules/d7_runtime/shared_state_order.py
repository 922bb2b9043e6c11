"""D708 shared-state-order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.contract_globs import first_match
from shardlint.facts import StateEvent

_TRACE = "<trace>"


class SharedStateOrder(Rule):
    """
    A state that modules share within a step was consumed too early, produced twice, or produced again in recomputation.

    ## What it does
    Replays the events of shared states, micro-step by micro-step: each state must be produced before it is consumed,
    once by each of its producers (several only when the contract declares them), and never while an activation
    checkpoint is recomputed. Events that the trace dropped beyond its limit are reported too.

    ## Why it is unsafe
    A consumer that runs before the producer reads the state of the step before, or of another batch. Recomputation
    that produces again replaces or doubles a state that the backward of others still reads.

    ## What to do
    Pass the state as an argument. Where it must be shared, produce it outside of checkpointed regions, clear it at
    the beginning of each forward, and let the consumer refuse a state of another step.
    """

    code = "D708"
    name = "shared-state-order"
    phase = Phase.D7
    severity = Severity.ERROR
    needs = (Section.RUNTIME,)
    related_config = ("contract.shared-state",)

    noun = "shared state"

    def subjects(self, facts: Facts) -> Iterable[tuple[str, list[StateEvent]]]:
        runtime = facts.require(Section.RUNTIME)
        by_state: dict[str, list[StateEvent]] = {}
        for event in runtime.state_events:
            by_state.setdefault(event.state, []).append(event)
        return (*by_state.items(), *([(_TRACE, [])] if runtime.state_dropped else []))

    def judge(self, subject: tuple[str, list[StateEvent]], facts: Facts) -> Iterator[Finding]:
        state, events = subject
        if state == _TRACE:
            yield self._overflow(facts.require(Section.RUNTIME).state_dropped)
        shared = facts.contract.shared_state if facts.contract else ()
        declared = [glob for entry in shared if entry.name == state for glob in entry.producers]
        for fault, wrong in _faults(events, declared).items():
            by = wrong[0].by or "an unnamed module"
            yield self.finding(
                subject=state,
                kind=SubjectKind.FIELD,
                owner=wrong[0].by or None,
                message=f"{fault} by {by} in micro-step {wrong[0].step}",
                evidence={"by": [event.by for event in wrong], "steps": [event.step for event in wrong]},
                key=fault,
            )

    def _overflow(self, dropped: int) -> Finding:
        return self.finding(
            subject=_TRACE,
            kind=SubjectKind.FIELD,
            message=f"{dropped} events of shared states were dropped beyond the trace's limit",
            evidence={"dropped": dropped},
            key="overflow",
        )


def _faults(events: Iterable[StateEvent], declared: Sequence[str]) -> dict[str, list[StateEvent]]:
    """The faulty events of one state by what is wrong with them; `declared` are the globs of its producers."""
    faults: dict[str, list[StateEvent]] = {}
    producers: dict[int, list[str]] = {}
    for event in events:
        before = producers.setdefault(event.step, [])
        fault = ""
        if event.kind == "produced":
            if event.recompute:
                fault = "produced again in recomputation"
            elif before and (event.by in before or not _all_declared((*before, event.by), declared)):
                fault = "produced twice"
            before.append(event.by)
        elif not before and not event.recompute:
            fault = "consumed before it was produced"
        if fault:
            faults.setdefault(fault, []).append(event)
    return faults


def _all_declared(producers: Iterable[str], globs: Sequence[str]) -> bool:
    return bool(globs) and all(first_match(globs, (name,)) for name in producers)
