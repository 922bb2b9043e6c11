"""D204 forward-field-collision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import DataStageFacts


class ForwardFieldCollision(Rule):
    """
    Two stages of the data pipeline claim the same forward field.

    ## What it does
    Lists the stages that claim each forward field and reports the fields that more than one stage claims.

    ## Why it is unsafe
    The later stage overwrites what the earlier one wrote, so the model sees one of the two by the accident of their
    order, and the batch looks sound.

    ## What to do
    Let one stage own the field. If a stage has to transform what another wrote, say so in one stage.
    """

    code = "D204"
    name = "forward-field-collision"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.DATA,)
    related_config = ("contract.data",)

    noun = "forward field"

    def subjects(self, facts: Facts) -> Iterable[tuple[str, list[DataStageFacts]]]:
        claims: dict[str, list[DataStageFacts]] = {}
        for stage in facts.require(Section.DATA).stages:
            for name in dict.fromkeys(stage.fields):
                claims.setdefault(name, []).append(stage)
        return claims.items()

    def judge(self, subject: tuple[str, list[DataStageFacts]], facts: Facts) -> Iterator[Finding]:
        name, stages = subject
        if len(stages) > 1:
            names = [stage.name for stage in stages]
            yield self.finding(
                subject=name,
                kind=SubjectKind.FIELD,
                message=f"expected one stage to claim the forward field {name!r}, found {', '.join(names)}",
                evidence={"stages": names},
            )
