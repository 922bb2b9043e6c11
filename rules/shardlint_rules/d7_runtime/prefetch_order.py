"""D702 prefetch-order."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import RuntimeFacts, TracedUnit
from shardlint.names import counted, pattern_of

from ._traces import complete, seen


@frozen
class _Place:
    """Where a target ran relative to its trigger in one micro-step: `fault`, and siblings between them."""

    fault: str = ""
    between: tuple[str, ...] = ()


@frozen
class _Prefetch:
    """A target of a unit in one direction, and the orders of the micro-steps in which the unit ran."""

    unit: TracedUnit
    direction: str
    target: str
    traced: TracedUnit | None
    targets: tuple[str, ...]
    orders: list[tuple[str, ...]]

    @property
    def name(self) -> str:
        """The two ends."""
        return f"{self.unit.name} to {self.target}"


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

    noun = "prefetch target"

    def subjects(self, facts: Facts) -> Iterator[_Prefetch]:
        runtime = facts.require(Section.RUNTIME)
        units = runtime.unit_by_name()
        prefetching = [unit for unit in runtime.units if unit.forward_prefetch or unit.backward_prefetch]
        if not prefetching:
            return
        complete(runtime)
        for direction in ("forward", "backward"):
            orders = _orders(runtime, direction)
            if runtime.raised and not orders:
                raise NotEvaluated(f"the traced block raised {runtime.raised}")
            for unit in prefetching:
                targets = unit.forward_prefetch if direction == "forward" else unit.backward_prefetch
                ran = [order for order in orders if unit.name in order]
                for name in dict.fromkeys(targets):
                    if name != unit.name and (ran or not unit.observed):
                        yield _Prefetch(unit, direction, name, units.get(name), targets, ran)

    def judge(self, prefetch: _Prefetch, facts: Facts) -> Iterator[Finding]:
        unit, direction, target, traced, targets, orders = attrs.astuple(prefetch, recurse=False)
        for end in (unit, traced):
            if end is not None:
                seen(end)
        places = [_place(order, unit.name, target, len(targets)) for order in orders]
        if any(not place.fault for place in places):
            return
        place, order = places[0], orders[0]
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
