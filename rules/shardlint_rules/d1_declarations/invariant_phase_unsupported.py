"""D101 invariant-phase-unsupported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import InvariantOutcome

SUPPORTED = ("structure", "materialization", "checkpoint", "runtime")


class InvariantPhaseUnsupported(Rule):
    """
    An invariant of the contract declares a lifecycle phase that does not exist.

    ## What it does
    Looks at every invariant that the contract declares and compares its phase with the phases in which shardlint
    evaluates invariants: structure, materialization, checkpoint and runtime.

    ## Why it is unsafe
    An invariant of an unknown phase is never evaluated, while its owner believes that it guards the run.

    ## What to do
    Give the invariant one of the supported phases: the one after which it has to hold.
    """

    code = "D101"
    name = "invariant-phase-unsupported"
    phase = Phase.D1
    severity = Severity.ERROR
    needs = (Section.CONTRACT,)
    related_config = ("contract.invariants",)
    noun = "invariant"

    def subjects(self, facts: Facts) -> Iterable[InvariantOutcome]:
        return facts.require(Section.CONTRACT).invariants

    def judge(self, subject: InvariantOutcome, facts: Facts) -> Iterator[Finding]:
        if subject.status == "unsupported-phase" or subject.phase not in SUPPORTED:
            yield self.finding(
                subject=subject.name,
                kind=SubjectKind.CONFIG,
                message=f"invariant {subject.name!r}: expected a phase of {', '.join(SUPPORTED)}, "
                f"found {subject.phase!r}",
                evidence={"phase": subject.phase, "supported": SUPPORTED},
            )
