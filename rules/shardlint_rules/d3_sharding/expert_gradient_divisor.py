"""D307 expert-gradient-divisor."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import DENSE, EXPERT, ShardingFacts, UnitFacts

from ._layouts import ranks_text


class ExpertGradientDivisor(Rule):
    """
    The gradients of experts are divided by another number than those of dense parameters.

    ## What it does
    Compares the effective divisor of every unit of experts (its gradient divide factor, or the number of ranks that it
    reduces over) with that of the dense units. Tokens reach an expert from every data-parallel rank, so that both
    sums are over the same tokens and must be divided alike. No convention is assumed: dividing both by 1 is as good.

    ## Why it is unsafe
    Experts are reduced over fewer ranks than dense parameters are. With the default divisor their gradients come
    out too large by the expert-parallel degree, which shifts the balance between experts and the rest of the model and
    the global gradient norm.

    ## What to do
    Set the divisor of the expert units to that of the dense ones:
    `module.set_gradient_divide_factor(data_parallel_size)`.
    """

    code = "D307"
    name = "expert-gradient-divisor"
    phase = Phase.D3
    severity = Severity.WARNING
    needs = (Section.SHARDING,)
    related_config = ("ep_size", "gradient_divide_factor")

    noun = "expert unit"

    def subjects(self, facts: Facts) -> Iterator[tuple[UnitFacts, set[float], list[str]]]:
        sharding = facts.require(Section.SHARDING)
        dense, unknown = _dense_divisors(sharding)
        for unit in sharding.units:
            if unit.domain_unknown or set(unit.domains) == {EXPERT}:
                yield unit, dense, unknown

    def judge(self, subject: tuple[UnitFacts, set[float], list[str]], facts: Facts) -> Iterator[Finding]:
        unit, dense, unknown = subject
        if unit.domain_unknown:
            raise NotEvaluated(unit.domain_unknown)
        if unknown or not dense:
            raise NotEvaluated("the divisor of the dense gradients is unknown" if unknown else "no unit is dense")
        reductions = facts.require(Section.SHARDING).reductions
        reduction = reductions[unit.reduction] if unit.reduction is not None else None
        if reduction is None or reduction.divisor is None:
            raise NotEvaluated(f"the divisor is unknown of {unit.name}")
        wanted = ", ".join(f"{divisor:g}" for divisor in sorted(dense))
        if reduction.divisor not in dense:
            yield self.finding(
                subject=unit.name,
                kind=SubjectKind.UNIT,
                owner=unit.owner,
                message=(
                    f"expected expert gradients to be divided by {wanted} like the dense ones, found "
                    f"{reduction.divisor:g} (summed over {ranks_text(reduction.ranks)})"
                ),
                evidence={
                    "divisor": reduction.divisor,
                    "dense_divisors": tuple(sorted(dense)),
                    "ranks": reduction.ranks,
                },
            )


def _dense_divisors(sharding: ShardingFacts) -> tuple[set[float], list[str]]:
    """The divisors of the units that hold dense trainable parameters, and the units that do not report theirs."""
    divisors, unknown = set[float](), list[str]()
    for unit in sharding.units:
        if DENSE not in unit.domains:
            continue
        divisor = sharding.reductions[unit.reduction].divisor if unit.reduction is not None else None
        if divisor is None:
            unknown.append(unit.name)
        else:
            divisors.add(divisor)
    return divisors, unknown
