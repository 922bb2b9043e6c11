"""D701 unit-bypassed."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import DirectUse, GradientFacts, RuntimeFacts, TracedUnit
from shardlint.names import listed

from ._traces import complete


class UnitBypassed(Rule):
    """
    A unit's parameters were used though the unit's own forward never ran.

    ## What it does
    Compares, over the traced steps, the forwards of each unit with the gradients of its parameters, with the modules
    inside it that ran, and with the torch functions that were given its sharded parameters. Parameters that another
    module holds too (ties) count for the module that ran. Where nothing is sharded it is a warning: the step is right,
    and stops being so with the first `fully_shard`.

    ## Why it is unsafe
    The hooks of the unit's forward gather its parameters and arrange the reduction of its gradients. A loss that reads
    `lm_head.weight`, a call of `.forward()` or of a method of one's own goes past them: the parameters are shards, or
    stale, and their gradients are not reduced.

    ## What to do
    Call the module itself. Where a method or a fused loss must use the weights, register it
    (`register_fsdp_forward_method`), or let the parent that does run manage those parameters.
    """

    code = "D701"
    name = "unit-bypassed"
    phase = Phase.D7
    severity = Severity.ERROR
    needs = (Section.RUNTIME,)

    def check(self, facts: Facts) -> Iterator[Finding]:
        runtime = facts.require(Section.RUNTIME)
        forwarded = runtime.forwarded()
        gradients = runtime.gradients_by_unit()
        uses: dict[str, list[DirectUse]] = {}
        for use in runtime.direct_uses:
            uses.setdefault(use.unit, []).append(use)
        elsewhere = _ran_elsewhere(facts)
        for unit in runtime.units:
            if unit.observed:
                ran, used = unit.name in forwarded, uses.get(unit.name, [])
                reasons = _reasons(unit, ran, gradients[unit.name], used, runtime, elsewhere=unit.name in elsewhere)
                if reasons:
                    yield self.bypassed(unit, ran, reasons, used)
        complete(runtime)
        hidden = [unit.name for unit in runtime.units if not unit.observed]
        if hidden:
            raise NotEvaluated(f"forwards cannot be seen inside compiled modules: {listed(hidden)}")

    def bypassed(self, unit: TracedUnit, ran: bool, reasons: list[str], uses: list[DirectUse]) -> Finding:
        start = "past its own forward" if ran else "its own forward never ran"
        return self.finding(
            subject=unit.name,
            kind=SubjectKind.UNIT,
            owner=unit.name,
            severity=Severity.ERROR if unit.sharded else Severity.WARNING,
            message=f"{start}, but {'; '.join(reasons)}",
            evidence={
                "unit_kind": unit.kind,
                "inner_runs": unit.inner_runs,
                "while_sharded": unit.while_sharded,
                "direct_uses": [f"{use.parameter} in {use.function} at {use.where}" for use in uses],
            },
        )


def _ran_elsewhere(facts: Facts) -> set[str]:
    """
    The units that ran on some ranks only, under a wrapper that allows it: DDP with unused parameters.

    Its average brings the gradients of the other ranks, so that they say nothing of what ran here.
    """
    units = facts.sharding.units if facts.sharding is not None else ()
    allowed = any(unit.kind == "ddp" and unit.flags.get("find_unused_parameters") is True for unit in units)
    if not allowed or facts.ranks is None:
        return set()
    entered = (difference.fqn for difference in facts.ranks.runtime if difference.field == "entered")
    return {name.removeprefix("unit ") for name in entered}


def _reasons(
    unit: TracedUnit,
    ran: bool,
    gradients: list[GradientFacts],
    uses: list[DirectUse],
    runtime: RuntimeFacts,
    *,
    elsewhere: bool,
) -> list[str]:
    reasons = []
    if uses:
        first = uses[0]
        place = f" at {first.where}" if first.where else ""
        reasons.append(f"{first.function}() was given the sharded {first.parameter}{place}")
    if unit.while_sharded:
        reasons.append(f"{listed(unit.while_sharded)} ran while its parameters were sharded")
    if ran:
        return reasons
    if unit.inner_runs:
        reasons.append(f"{listed(unit.inner_runs)} inside it ran")
    if elsewhere:
        return reasons  # the gradients are those of the ranks where it ran
    got = [
        gradient.fqn
        for gradient in gradients
        if gradient.present > gradient.zero and not _reached_elsewhere(gradient, unit, runtime)
    ]
    if got:
        reasons.append(f"{listed(got)} got gradients")
    return reasons


def _reached_elsewhere(gradient: GradientFacts, unit: TracedUnit, runtime: RuntimeFacts) -> bool:
    """Whether the gradient can be another unit's that holds the parameter too, or that cannot be watched."""
    forwarded = runtime.forwarded()
    units = runtime.unit_by_name()
    return any(
        name in forwarded or not units[name].observed for name in gradient.units if name != unit.name and name in units
    )
