"""What the rules about declared invariants share: outcomes of one lifecycle phase become findings."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Rule, Section, SubjectKind
from shardlint.facts import InvariantOutcome


class InvariantRule(Rule, abstract=True):
    """A base for the rules that report the failed invariants of one lifecycle phase."""

    needs = (Section.CONTRACT,)
    related_config = ("contract.invariants",)
    lifecycle: str
    noun = "invariant"

    def subjects(self, facts: Facts) -> Iterator[InvariantOutcome]:
        for outcome in facts.require(Section.CONTRACT).invariants:
            if outcome.phase == self.lifecycle:
                yield outcome

    def judge(self, subject: InvariantOutcome, facts: Facts) -> Iterator[Finding]:
        if subject.status in ("failed", "raised"):
            yield self._failed(subject)
        elif subject.status == "not-evaluated":
            raise NotEvaluated(f"its checker did not run{f' ({subject.error})' if subject.error else ''}")

    def _failed(self, outcome: InvariantOutcome) -> Finding:
        what = f"its checker raised {outcome.error}" if outcome.status == "raised" else "it does not hold"
        return self.finding(
            subject=outcome.name,
            kind=SubjectKind.CONFIG,
            message=f"{self.lifecycle} invariant {outcome.name!r}: {what}",
            evidence=outcome.facts if outcome.status == "failed" else {"error": outcome.error},
        )
