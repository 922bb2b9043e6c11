"""D702 prefetch-order."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import RuntimeFacts, TracedUnit
from shardlint.names import counted, pattern_of

from ._traces import complete


@frozen
class _Place:
    """Where a target ran relative to its trigger in one micro-step: `fault`, and siblings between them."""

    fault: str = ""
    between: tuple[str, ...] = ()


class PrefetchOrder(Rule):
    """
    A unit prefetches a unit that does not run after it.

    ## What it does
    Compares the forward and backward prefetch targets of every unit with the observed order of forwards and of
    backwards, as they were: no order is assumed, and a backward need not be the reverse of the forward. A target that
    did not run, or ran before its trigger, in every micro-step in which the trigger ran is an error. A target that ran
    later, but after more units like it than the trigger prefetches, is a warning.

    ## Why it is unsafe
    What is prefetched and not used next is held in full size for nothing, and may be left over when the optimizer
    steps; what is needed next is gathered late. Lists sorted as text (`layers.10` before `layers.2`) do this.

    ## What to do
    Set the targets from the order in which the modules run: numbers sorted as numbers.
    """

    code = "D702"
    name = "prefetch-order"
    phase = Phase.D7
    severity = Severity.ERROR
    needs = (Section.RUNTIME,)
    related_config = ("forward_prefetch", "backward_prefetch")

    def check(self, facts: Facts) -> Iterator[Finding]:
        runtime = facts.require(Section.RUNTIME)
        complete(runtime)
        hidden = {unit.name for unit in runtime.units if not unit.observed}
        for direction, attribute in (("forward", "forward_prefetch"), ("backward", "backward_prefetch")):
            orders = _orders(runtime, direction)
            for unit in runtime.units:
                for target in dict.fromkeys(getattr(unit, attribute)):
                    if target not in hidden and target != unit.name:
                        yield from self.target(unit, direction, target, getattr(unit, attribute), orders)

    def target(
        self, unit: TracedUnit, direction: str, target: str, targets: tuple[str, ...], orders: list[tuple[str, ...]]
    ) -> Iterator[Finding]:
        places = [_place(order, unit.name, target, len(targets)) for order in orders if unit.name in order]
        if not places or any(not place.fault for place in places):
            return
        place = places[0]
        order = next(order for order in orders if unit.name in order)
        position = order.index(unit.name)
        yield self.finding(
            subject=unit.name,
            kind=SubjectKind.UNIT,
            owner=unit.name,
            severity=Severity.WARNING if place.between else Severity.ERROR,
            message=f"prefetches {target} in {direction}, which {place.fault}",
            evidence={"direction": direction, "targets": targets, "ran_next": order[position + 1 : position + 5]},
            key=f"{direction}:{target}",
        )


def _orders(runtime: RuntimeFacts, direction: str) -> list[tuple[str, ...]]:
    """The order of each micro-step; where the trace ended with an error the last one is not reliable."""
    numbers = sorted({event.step for event in runtime.events if event.kind == direction})
    if runtime.raised and numbers:
        numbers.pop()
    return [runtime.order(direction, number) for number in numbers]


def _place(order: tuple[str, ...], trigger: str, target: str, count: int) -> _Place:
    if target not in order:
        return _Place("did not run")
    position = order.index(trigger)
    rest = order[position + 1 :]
    if target not in rest:
        return _Place("ran before it")
    alike = pattern_of(target)
    between = dict.fromkeys(name for name in rest[: rest.index(target)] if pattern_of(name) == alike)
    if alike == pattern_of(trigger) and len(between) > count:
        return _Place(f"runs only after {counted(len(between), 'other')} like it", tuple(between))
    return _Place()
