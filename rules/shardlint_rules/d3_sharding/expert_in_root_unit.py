"""D303 expert-in-root-unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import EXPERT, UnitFacts
from shardlint.names import listed, ordered


class ExpertInRootUnit(Rule):
    """
    An expert-parallel parameter is managed by the dense root unit.

    ## What it does
    Looks for parameters of the `EXPERT` domain in the unit of the root module: experts that no wrap reached, so that
    the root took what was left. A parameter group of the root with a mesh of its own, which holds experts only, is no
    dense unit and is not reported.

    ## Why it is unsafe
    The root unit reduces over the dense data-parallel ranks, which hold different experts, and gathers all experts of
    the model at once for the whole step: wrong gradients, or an out-of-memory far from its cause.

    ## What to do
    Wrap every module that holds experts by itself, with the mesh of the expert domain, before the root is wrapped.
    Check that the wrap declaration names the class (or the pattern) of the expert modules.
    """

    code = "D303"
    name = "expert-in-root-unit"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)
    related_config = ("fsdp_plan", "fsdp_wrap_modules")

    noun = "root unit"

    def subjects(self, facts: Facts) -> Iterable[UnitFacts]:
        units = facts.require(Section.SHARDING).units
        return (unit for unit in units if unit.at_root and (unit.domains or unit.domain_unknown))

    def judge(self, unit: UnitFacts, facts: Facts) -> Iterator[Finding]:
        experts = unit.domains.get(EXPERT, ())
        if experts and not _own_group(unit):
            yield self.finding(
                subject=unit.name,
                kind=SubjectKind.UNIT,
                owner=unit.owner,
                message=f"expected no expert parameter in the root unit, found {len(experts)}: "
                f"{listed(ordered(experts))}",
                evidence={"parameters": experts},
            )
        elif unit.domain_unknown:
            raise NotEvaluated(unit.domain_unknown)


def _own_group(unit: UnitFacts) -> bool:
    return unit.groups > 1 and set(unit.domains) == {EXPERT}
