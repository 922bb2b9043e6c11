"""D701 unit-bypassed."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import DirectUse, GradientFacts, TracedUnit
from shardlint.names import listed

from ._traces import complete, seen


@frozen
class _Use:
    """A unit, whether its forward ran, the gradients of its parameters, and torch functions that were given some."""

    unit: TracedUnit
    ran: bool
    gradients: list[GradientFacts]
    uses: list[DirectUse]
    units: dict[str, TracedUnit]
    forwarded: frozenset[str]

    @property
    def name(self) -> str:
        """The unit's name."""
        return self.unit.name


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

    noun = "unit"

    def subjects(self, facts: Facts) -> Iterator[_Use]:
        runtime = facts.require(Section.RUNTIME)
        if not (runtime.steps or runtime.events or runtime.backwards or runtime.direct_uses):
            return
        forwarded = runtime.forwarded()
        gradients = runtime.gradients_by_unit()
        units = runtime.unit_by_name()
        uses: dict[str, list[DirectUse]] = {}
        for use in runtime.direct_uses:
            uses.setdefault(use.unit, []).append(use)
        for name, unit in units.items():
            yield _Use(unit, name in forwarded, gradients[name], uses.get(name, []), units, forwarded)

    def judge(self, use: _Use, facts: Facts) -> Iterator[Finding]:
        seen(use.unit)
        runtime = facts.require(Section.RUNTIME)
        # What a trace that lost events did not see may have been among them.
        lost = not use.ran and bool(runtime.dropped)
        elsewhere = use.unit.name in _ran_elsewhere(facts)
        reasons = _reasons(use, whole=not lost, elsewhere=elsewhere)
        if reasons:
            yield self.bypassed(use.unit, use.ran or lost, reasons, use.uses)
        if lost:
            complete(runtime)

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


def _reasons(use: _Use, *, whole: bool, elsewhere: bool) -> list[str]:
    """What speaks for a bypass; with `whole` also what does because the unit's forward never ran."""
    unit, reasons = use.unit, []
    if use.uses:
        first = use.uses[0]
        place = f" at {first.where}" if first.where else ""
        reasons.append(f"{first.function}() was given the sharded {first.parameter}{place}")
    if unit.while_sharded:
        reasons.append(f"{listed(unit.while_sharded)} ran while its parameters were sharded")
    if use.ran or not whole:
        return reasons
    if unit.inner_runs:
        reasons.append(f"{listed(unit.inner_runs)} inside it ran")
    if elsewhere:
        return reasons  # the gradients are those of the ranks where it ran
    got = [
        gradient.fqn
        for gradient in use.gradients
        if gradient.present > gradient.zero and not _reached_elsewhere(gradient, use)
    ]
    if got:
        reasons.append(f"{listed(got)} got gradients")
    return reasons


def _reached_elsewhere(gradient: GradientFacts, use: _Use) -> bool:
    """Whether the gradient can be another unit's that holds the parameter too, or that cannot be watched."""
    others = (name for name in gradient.units if name != use.unit.name and name in use.units)
    return any(name in use.forwarded or not use.units[name].observed for name in others)
