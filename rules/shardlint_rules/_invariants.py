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

    def check(self, facts: Facts) -> Iterator[Finding]:
        contract = facts.require(Section.CONTRACT)
        unknown = []
        for outcome in contract.invariants:
            if outcome.phase != self.lifecycle:
                continue
            if outcome.status in ("failed", "raised"):
                yield self._failed(outcome)
            elif outcome.status == "not-evaluated":
                unknown.append(f"{outcome.name} ({outcome.error})" if outcome.error else outcome.name)
        if unknown:
            raise NotEvaluated(f"invariants whose checker did not run: {', '.join(unknown)}")

    def _failed(self, outcome: InvariantOutcome) -> Finding:
        what = f"its checker raised {outcome.error}" if outcome.status == "raised" else "it does not hold"
        return self.finding(
            subject=outcome.name,
            kind=SubjectKind.CONFIG,
            message=f"{self.lifecycle} invariant {outcome.name!r}: {what}",
            evidence=outcome.facts if outcome.status == "failed" else {"error": outcome.error},
        )
