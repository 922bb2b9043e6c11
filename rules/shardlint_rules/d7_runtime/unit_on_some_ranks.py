"""D710 unit-on-some-ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import RankDifference, TracedUnit, UnitFacts
from shardlint.names import ranges

from ._traces import seen


@frozen
class _Compared:
    """Something that was compared between the ranks, the unit that it is on this rank, and what differs."""

    name: str
    unit: TracedUnit | None
    differences: list[RankDifference]


class UnitOnSomeRanks(Rule):
    """
    A unit was entered, or a gradient came, on some of the ranks that work together only.

    ## What it does
    Compares between ranks that share a mesh or a reduction which units ran forward and which parameters got gradients
    in the traced steps. Ranks of different pipeline stages share none. Gradients of experts are not compared: it
    depends on the rank which of them got tokens. Under DDP with `find_unused_parameters` branches may differ. When a
    step raised, only the units are compared.

    ## Why it is unsafe
    Entering a unit gathers it, and the gather waits for every rank of the group. A branch that one rank does not take
    hangs the job, or pairs the gather with another rank's next one of another size.

    ## What to do
    Take the same branch on every rank: run the unit with an input of zeros (or of length zero) where a rank has
    nothing for it, or decide together, by a reduction.
    """

    code = "D710"
    name = "unit-on-some-ranks"
    phase = Phase.D7
    severity = Severity.ERROR
    needs = (Section.RUNTIME, Section.RANKS)

    noun = "unit"

    def subjects(self, facts: Facts) -> Iterator[_Compared]:
        ranks, runtime = facts.require(Section.RANKS), facts.require(Section.RUNTIME)
        traced = set(ranks.runtime_traced)
        if not any(len(traced.intersection(group)) > 1 for group in ranks.compared):
            raise NotEvaluated("no two ranks that share a mesh or a reduction had a trace")
        if any(_allows_unused(unit) for unit in (facts.sharding.units if facts.sharding else ())):
            return
        units = {f"unit {unit.name}": unit for unit in runtime.units}
        differences: dict[str, list[RankDifference]] = {name: [] for name in units}
        for difference in ranks.runtime:
            if difference.field in ("entered", "gradient"):
                differences.setdefault(difference.fqn, []).append(difference)
        for name, found in differences.items():
            yield _Compared(name, units.get(name), found)

    def judge(self, compared: _Compared, facts: Facts) -> Iterator[Finding]:
        if compared.unit is not None and not compared.differences:
            seen(compared.unit)
        for difference in compared.differences:
            yield self.difference(difference, facts.require(Section.RUNTIME).raised)

    def difference(self, difference: RankDifference, raised: str) -> Finding:
        kind, _, subject = difference.fqn.partition(" ")
        what = "ran forward" if difference.field == "entered" else "got a gradient"
        took, left = (
            (difference.ranks, (difference.reference_rank,))
            if difference.value == "yes"
            else ((difference.reference_rank,), difference.ranks)
        )
        ended = f"; the traced block raised {raised}" if raised else ""
        return self.finding(
            subject=subject,
            kind=SubjectKind.UNIT if kind == "unit" else SubjectKind.TENSOR,
            owner=subject if kind == "unit" else None,
            ranks=difference.ranks,
            message=f"{what} on {_ranks(took)} and not on {_ranks(left)}{ended}",
            evidence={"with": took, "without": left},
            key=difference.field,
        )


def _ranks(numbers: Iterable[int]) -> str:
    distinct = tuple(numbers)
    return f"rank{'' if len(distinct) == 1 else 's'} {ranges(distinct)}"


def _allows_unused(unit: UnitFacts) -> bool:
    """Whether the wrapper copes with branches that differ between ranks."""
    return unit.kind == "ddp" and unit.flags.get("find_unused_parameters") is True
