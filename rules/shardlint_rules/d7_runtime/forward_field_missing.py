"""D705 forward-field-missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.names import counted


class ForwardFieldMissing(Rule):
    """
    A forward ran without a field that the contract says every forward must get.

    ## What it does
    Compares the arguments of every traced forward of the model with `forward_fields` and `runtime_fields` of the
    contract's data semantics. An argument that is None was not given.

    ## Why it is unsafe
    The model falls back on a default: positions from zero, no mask, no loss. It trains, on something else.

    ## What to do
    Find the stage of the data pipeline that should fill the field, or that drops it (a collator, a column filter by
    the forward's signature). If the model does not need it, take it out of the contract.
    """

    code = "D705"
    name = "forward-field-missing"
    phase = Phase.D7
    severity = Severity.ERROR
    needs = (Section.RUNTIME, Section.CONTRACT)
    related_config = ("contract.data.forward-fields", "contract.data.runtime-fields")

    noun = "declared field"

    def subjects(self, facts: Facts) -> Iterable[str]:
        contract = facts.require(Section.CONTRACT)
        data = contract.data
        declared = () if data is None else dict.fromkeys((*data.forward_fields, *data.runtime_fields))
        if declared and not any(facts.require(Section.RUNTIME).training_steps()):
            raise NotEvaluated("no forward of the model with gradients was traced")
        return declared

    def judge(self, name: str, facts: Facts) -> Iterator[Finding]:
        steps = list(facts.require(Section.RUNTIME).training_steps())
        without = [step for step in steps if name not in step.fields]
        if any(given.startswith("<") for step in without for given in step.fields):
            raise NotEvaluated("a forward got positional arguments of which the signature tells no name")
        if without:
            missed = f"{len(without)} of {counted(len(steps), 'traced forward')}"
            yield self.finding(
                subject=name,
                kind=SubjectKind.FIELD,
                message=f"{missed} did not get the declared field {name}",
                evidence={"steps": [step.index for step in without], "given": without[0].fields},
            )
