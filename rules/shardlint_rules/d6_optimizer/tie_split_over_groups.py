"""D607 tie-split-over-groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.analysis.ties import wanted_pairs
from shardlint.facts import HeldTensor, LiveParameter, OptimizerFacts, OwnershipFacts, known

from ._held import where

_NAMES = ("name", "group_name")


class TieSplitOverGroups(Rule):
    """
    Copies that have to stay equal are optimised with different settings.

    ## What it does
    Takes the copies of one parameter: both ends of a declared tie that are two tensors (a copy for each pipeline
    stage, a tie that two units hold), and parameters that were one before sharding. Reports those whose groups differ
    in a hyperparameter, or whose optimizers are of different classes.

    ## Why it is unsafe
    Even with equal gradients the copies drift apart, and the model computes with whichever copy a stage holds. A
    checkpoint keeps one of them.

    ## What to do
    Put all copies into one group, or into groups with the same settings; choose groups by module or role rather than
    by a name that only one copy has.
    """

    code = "D607"
    name = "tie-split-over-groups"
    phase = Phase.D6
    severity = Severity.WARNING
    needs = (Section.OPTIMIZER, Section.MODEL)

    noun = "pair of copies"

    def subjects(self, facts: Facts) -> Iterator[tuple[str, LiveParameter, LiveParameter, HeldTensor, HeldTensor]]:
        """Pairs that the optimizers hold both, with the first place of each."""
        optimizer = facts.require(Section.OPTIMIZER)
        places_of = optimizer.held_by_parameter()
        index = {parameter.identity: number for number, parameter in enumerate(optimizer.parameters)}
        for left, right in copies(facts):
            first, second = places_of.get(index[left.identity]), places_of.get(index[right.identity])
            if first and second:
                yield f"{left.fqn} = {right.fqn}", left, right, first[0], second[0]

    def judge(
        self, subject: tuple[str, LiveParameter, LiveParameter, HeldTensor, HeldTensor], facts: Facts
    ) -> Iterator[Finding]:
        _, left, right, *places = subject
        optimizer = facts.require(Section.OPTIMIZER)
        differs = _differences(optimizer, *places)
        if differs:
            yield self.finding(
                subject=left.fqn,
                message=f"a copy of {right.fqn}, optimised with other settings: {'; '.join(differs)}",
                evidence={"copy": right.fqn, "places": [where(optimizer, tensor) for tensor in places]},
                owner=left.owner or None,
                key=right.fqn,
            )


def copies(facts: Facts) -> Iterator[tuple[LiveParameter, LiveParameter]]:
    """Pairs of different live parameters that have to stay equal."""
    model = facts.require(Section.MODEL)
    optimizer = facts.require(Section.OPTIMIZER)
    names = {alias: parameter for parameter in optimizer.parameters for alias in parameter.aliases}
    seen: set[tuple[int, int]] = set()
    for target, source in (*wanted_pairs(model, facts.contract).items(), *_same_origin(facts)):
        left, right = names.get(target), names.get(source)
        if left is not None and right is not None and left.identity != right.identity:
            pair = (left.identity, right.identity)
            if pair not in seen and pair[::-1] not in seen:
                seen.add(pair)
                yield left, right


def _same_origin(facts: Facts) -> Iterator[tuple[str, str]]:
    origins: dict[int, str] = {}
    records: Iterable[OwnershipFacts] = facts.sharding.parameters if facts.sharding is not None else ()
    for record in records:
        if record.origin is not None and not record.replaced:
            first = origins.setdefault(record.origin, record.fqn)
            if first != record.fqn:
                yield record.fqn, first


def _differences(optimizer: OptimizerFacts, left: HeldTensor, right: HeldTensor) -> list[str]:
    one, other = optimizer.group_of(left), optimizer.group_of(right)
    differences = []
    if one.optimizer != other.optimizer:
        kinds = [known(optimizer.optimizer_of(tensor).qualified_type) for tensor in (left, right)]
        differences = [] if kinds[0] == kinds[1] else [f"optimizer {kinds[0]} and {kinds[1]}"]
    for option in sorted({*one.options, *other.options}):
        values = one.options.get(option), other.options.get(option)
        if values[0] != values[1] and option not in _NAMES:
            differences.append(f"{option} {values[0]} and {values[1]}")
    return differences
