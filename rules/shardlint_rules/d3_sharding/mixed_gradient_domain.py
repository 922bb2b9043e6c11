"""D302 mixed-gradient-domain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import DENSE, EXPERT, UnitFacts
from shardlint.names import counted, listed, ordered


class MixedGradientDomain(Rule):
    """
    One unit manages dense and expert-parallel parameters.

    ## What it does
    Looks at the gradient domain of every parameter of a unit: `EXPERT` for those that are sharded along an
    expert-parallel mesh axis, `DENSE` for the others. A unit must hold one domain only. Parameter groups of one module
    that have meshes of their own are units of their own.

    ## Why it is unsafe
    A unit reduces all its gradients over one group of ranks. Experts live on fewer ranks than dense parameters do, so
    either the dense gradients are not averaged over all data-parallel ranks, or experts are averaged with other
    experts. Nothing raises; the loss only falls more slowly.

    ## What to do
    Make the experts a unit of their own with the mesh of their domain (`fully_shard(layer.mlp.experts, mesh=efsdp)`)
    before the layer is wrapped, or give `shard_placement_fn` a mesh for them.
    """

    code = "D302"
    name = "mixed-gradient-domain"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)
    related_config = ("fsdp_plan", "fsdp_wrap_modules")

    noun = "unit"

    def subjects(self, facts: Facts) -> Iterable[UnitFacts]:
        return (unit for unit in facts.require(Section.SHARDING).units if unit.domains or unit.domain_unknown)

    def judge(self, unit: UnitFacts, facts: Facts) -> Iterator[Finding]:
        domains = {name: unit.domains[name] for name in (DENSE, EXPERT) if unit.domains.get(name)}
        if len(domains) > 1:
            yield self.finding(
                subject=unit.name,
                kind=SubjectKind.UNIT,
                owner=unit.owner,
                message=(
                    f"expected one gradient domain, found {len(domains[DENSE])} dense and "
                    f"{counted(len(domains[EXPERT]), 'expert parameter')}, "
                    f"among them {listed(ordered(domains[EXPERT]))}"
                ),
                evidence={"domains": domains},
            )
        elif unit.domain_unknown:
            raise NotEvaluated(unit.domain_unknown)
