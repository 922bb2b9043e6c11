"""D605 parameter-twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import HeldTensor, OptimizerFacts

from ._held import where


class ParameterTwice(Rule):
    """
    One parameter stands at two places of the optimizers.

    ## What it does
    Reports every tensor that is listed twice: within a group, in two groups, in two optimizers, or once itself and once
    as its main copy. Tied names are one tensor and count once.

    ## Why it is unsafe
    Each place updates it, with the same gradient: the step is twice as long, weight decay acts twice, and groups with
    different settings fight. Two places in one group share one state, so that moments advance twice in a step.

    ## What to do
    Filter by identity when building groups: `named_parameters()` lists a tied parameter once, a list that is put
    together by hand does not.
    """

    code = "D605"
    name = "parameter-twice"
    phase = Phase.D6
    severity = Severity.ERROR
    needs = (Section.OPTIMIZER,)

    noun = "tensor"

    def subjects(self, facts: Facts) -> Iterator[list[HeldTensor]]:
        """The places of each tensor that an optimizer holds."""
        places: dict[tuple[str, int], list[HeldTensor]] = {}
        for tensor in facts.require(Section.OPTIMIZER).held:
            key = ("live", tensor.parameter) if tensor.parameter is not None else ("stale", tensor.identity)
            places.setdefault(key, []).append(tensor)
        yield from places.values()

    def judge(self, tensors: list[HeldTensor], facts: Facts) -> Iterable[Finding]:
        return (self.twice(facts.require(Section.OPTIMIZER), tensors),) if len(tensors) > 1 else ()

    def twice(self, optimizer: OptimizerFacts, tensors: list[HeldTensor]) -> Finding:
        parameter = optimizer.parameter_of(tensors[0])
        texts = [where(optimizer, tensor) for tensor in tensors]
        return self.finding(
            subject=texts[0] if parameter is None else parameter.fqn,
            kind=SubjectKind.MODEL if parameter is None else SubjectKind.TENSOR,
            message=f"expected one place in the optimizers, found {len(texts)}: {'; '.join(texts)}",
            evidence={"places": texts},
        )
