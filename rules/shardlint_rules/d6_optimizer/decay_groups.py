"""D613 decay-groups."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import LiveParameter, OptimizerFacts, ParameterGroup
from shardlint.names import counted, owner_of

_LISTED = 50


class DecayGroups(Rule):
    """
    The group without weight decay is empty, and what it was made for is decayed.

    ## What it does
    Looks at optimizers that have a group without weight decay beside one with. Reports an empty one when parameters of
    normalisation layers or biases stand in groups with decay.

    ## Why it is unsafe
    The names by which the groups were chosen match nothing: scales of normalisation layers are pulled to zero in each
    step, which changes what every layer computes, and nothing raises.

    ## What to do
    Choose by module class or by number of dims rather than by name, and check that each group holds what it should.
    """

    code = "D613"
    name = "decay-groups"
    phase = Phase.D6
    severity = Severity.WARNING
    needs = (Section.OPTIMIZER, Section.MODEL)
    noun = "group without decay"

    def subjects(self, facts: Facts) -> Iterator[ParameterGroup]:
        optimizer = facts.require(Section.OPTIMIZER)
        decayed = {group.optimizer for group in optimizer.groups if group.number("weight_decay") and group.size}
        for group in optimizer.groups:
            if group.number("weight_decay") == 0.0 and group.optimizer in decayed:
                yield group

    def judge(self, group: ParameterGroup, facts: Facts) -> Iterator[Finding]:
        if group.size:
            return
        optimizer = facts.require(Section.OPTIMIZER)
        kinds = {module.fqn: module.qualified_type for module in facts.require(Section.MODEL).modules}
        names = [parameter.fqn for parameter in _decayed(optimizer, group.optimizer) if _is_meant(parameter, kinds)]
        if names:
            found = counted(len(names), "parameter of norms or bias", "parameters of norms or biases")
            yield self.finding(
                subject=f"{optimizer.optimizers[group.optimizer].name}, {group.name}",
                kind=SubjectKind.CONFIG,
                message=f"expected norms and biases in the group without weight decay, found it empty, and {found} "
                f"decayed, such as {names[0]}",
                evidence={"parameters": names[:_LISTED], "count": len(names)},
            )


def _decayed(optimizer: OptimizerFacts, number: int) -> Iterator[LiveParameter]:
    for held in optimizer.held:
        group, parameter = optimizer.group_of(held), optimizer.parameter_of(held)
        if parameter is not None and group.optimizer == number and group.number("weight_decay"):
            yield parameter


def _is_meant(parameter: LiveParameter, kinds: dict[str, str]) -> bool:
    bias = parameter.fqn.rpartition(".")[2] == "bias"
    return parameter.requires_grad and (bias or "norm" in kinds.get(owner_of(parameter.fqn) or "", "").lower())
