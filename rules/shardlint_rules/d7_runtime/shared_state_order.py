"""D708 shared-state-order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.contract_globs import first_match
from shardlint.facts import StateEvent


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        runtime = facts.require(Section.RUNTIME)
        declared = (
            {declared_state.name: declared_state.producers for declared_state in facts.contract.shared_state}
            if facts.contract
            else {}
        )
        for (state, fault), events in _faults(runtime.state_events, declared).items():
            by = events[0].by or "an unnamed module"
            yield self.finding(
                subject=state,
                kind=SubjectKind.FIELD,
                owner=events[0].by or None,
                message=f"{fault} by {by} in micro-step {events[0].step}",
                evidence={"by": [event.by for event in events], "steps": [event.step for event in events]},
                key=fault,
            )
        if runtime.state_dropped:
            yield self.finding(
                subject="<trace>",
                kind=SubjectKind.FIELD,
                message=f"{runtime.state_dropped} events of shared states were dropped beyond the trace's limit",
                evidence={"dropped": runtime.state_dropped},
                key="overflow",
            )


def _faults(
    events: Iterable[StateEvent], declared: dict[str, tuple[str, ...]]
) -> dict[tuple[str, str], list[StateEvent]]:
    faults: dict[tuple[str, str], list[StateEvent]] = {}
    producers: dict[tuple[str, int], list[str]] = {}
    for event in events:
        before = producers.setdefault((event.state, event.step), [])
        fault = ""
        if event.kind == "produced":
            if event.recompute:
                fault = "produced again in recomputation"
            elif before and (event.by in before or not _all_declared((*before, event.by), declared.get(event.state))):
                fault = "produced twice"
            before.append(event.by)
        elif not before and not event.recompute:
            fault = "consumed before it was produced"
        if fault:
            faults.setdefault((event.state, fault), []).append(event)
    return faults


def _all_declared(producers: Iterable[str], globs: tuple[str, ...] | None) -> bool:
    return bool(globs) and all(first_match(globs or (), (name,)) for name in producers)
