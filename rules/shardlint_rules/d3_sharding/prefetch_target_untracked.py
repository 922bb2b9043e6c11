"""D315 prefetch-target-untracked."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import UNTRACKED, UnitFacts


class PrefetchTargetUntracked(Rule):
    """
    A unit prefetches a module outside the module tree, or itself.

    ## What it does
    Looks at the forward and backward prefetch targets of every unit. A target must be another unit of the same tree.

    ## Why it is unsafe
    A target that was replaced after the prefetch list was built is gathered and never freed: memory is held and
    communication wasted in every step, while the unit that was meant is gathered late.

    ## What to do
    Set the prefetch targets last, after every replacement and every wrap.
    """

    code = "D315"
    name = "prefetch-target-untracked"
    phase = Phase.D3
    severity = Severity.WARNING
    needs = (Section.SHARDING,)
    related_config = ("forward_prefetch", "backward_prefetch")

    noun = "unit with prefetch targets"

    def subjects(self, facts: Facts) -> Iterator[UnitFacts]:
        seen = set[str]()
        for unit in facts.require(Section.SHARDING).units:
            if unit.owner in seen:  # parameter groups of one module share their targets
                continue
            seen.add(unit.owner)
            if unit.forward_prefetch or unit.backward_prefetch or _untold(unit):
                yield unit

    def judge(self, unit: UnitFacts, facts: Facts) -> Iterator[Finding]:
        for direction, targets in (("forward", unit.forward_prefetch), ("backward", unit.backward_prefetch)):
            yield from self.targets(unit, direction, targets)
        if _untold(unit):
            raise NotEvaluated(f"the prefetch targets are unknown of {unit.owner}")

    def targets(self, unit: UnitFacts, direction: str, targets: tuple[str, ...]) -> Iterator[Finding]:
        for target in dict.fromkeys(targets):
            wrong = "itself" if target == unit.owner else "a module outside the tree" if UNTRACKED in target else ""
            if wrong:
                yield self.finding(
                    subject=unit.name,
                    kind=SubjectKind.UNIT,
                    owner=unit.owner,
                    message=f"expected another unit of the tree to be prefetched {direction}, found {wrong}: {target}",
                    evidence={"direction": direction, "targets": targets},
                    key=f"{direction}:{target}",
                )


def _untold(unit: UnitFacts) -> bool:
    return "forward_prefetch" in unit.unknown or "backward_prefetch" in unit.unknown
