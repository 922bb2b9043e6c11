"""D602 empty-shard-without-layout."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.facts import HeldTensor, LiveParameter, OptimizerFacts, known


class EmptyShardWithoutLayout(Rule):
    """
    This rank holds nothing of a parameter that is not empty, in a tensor that does not say which part it is.

    ## What it does
    Reports parameters, main parameters and state tensors without elements that are not distributed tensors although the
    whole parameter has elements. Flat parts of FSDP1 and emptied groups of partitioning optimizers are left out:
    there the handle keeps the layout.

    ## Why it is unsafe
    An empty plain tensor has lost its global shape and placements. Gradient norms, state that is created from it and
    checkpoints treat the parameter as nothing at all; ranks then disagree about what exists, and collectives hang.

    ## What to do
    Keep an empty shard as a distributed tensor with the layout of the others, or shard along a dim that gives each
    rank a part.
    """

    code = "D602"
    name = "empty-shard-without-layout"
    phase = Phase.D6
    severity = Severity.ERROR
    needs = (Section.OPTIMIZER,)

    noun = "parameter"

    def subjects(self, facts: Facts) -> Iterator[tuple[LiveParameter, list[HeldTensor]]]:
        optimizer, places_of = facts.require(Section.OPTIMIZER), facts.require(Section.OPTIMIZER).held_by_parameter()
        for index, parameter in enumerate(optimizer.parameters):
            places = places_of.get(index, [])
            apart = parameter.flat or any(optimizer.optimizer_of(place).partitioned for place in places)
            if prod(parameter.global_shape) and not apart:
                yield parameter, places

    def judge(self, subject: tuple[LiveParameter, list[HeldTensor]], facts: Facts) -> Iterator[Finding]:
        ranks = (facts.environment.rank,) if facts.environment.world_size > 1 else ()
        return self.look_at(facts.require(Section.OPTIMIZER), *subject, ranks)

    def look_at(
        self, optimizer: OptimizerFacts, parameter: LiveParameter, places: list[HeldTensor], ranks: tuple[int, ...]
    ) -> Iterator[Finding]:
        roles = {"parameter": parameter.spec}
        if (main := known(parameter.main)) is not None:
            roles["main parameter"] = main
        for place in places:
            roles |= {f"state {name}": spec for name, spec in place.state.items()}
        for role, number in roles.items():
            spec = optimizer.specs[number]
            if spec.empty_here and known(spec.layout) is None:
                yield self.finding(
                    subject=parameter.fqn,
                    message=f"expected its {role} to be a distributed tensor, because this rank holds none of the "
                    f"{list(parameter.global_shape)} elements, found a plain tensor of shape {list(spec.shape)}",
                    evidence={"role": role, "global_shape": parameter.global_shape, "found": spec.text()},
                    owner=parameter.owner or None,
                    ranks=ranks,
                    key=role,
                )
