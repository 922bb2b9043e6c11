"""D521 conversion-not-applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.facts import TensorPlan
from shardlint.names import counted
from shardlint_rules._files import READ_FILES


class _Report(NamedTuple):
    """What the loader reported, for looking up."""

    missing: set[str]
    unexpected: set[str]


class ConversionNotApplied(Rule):
    """
    Live tensors have sources only through a conversion, and the load did not apply it.

    ## What it does
    Compares the load report with the load plan: tensors that the report calls missing although the plan fills them by
    renaming or converting stored keys, which the report calls unexpected.

    ## Why it is unsafe
    The weights are in the checkpoint and the model has a place for them; a loader without the conversions (a plain
    `load_state_dict`, an older release, a custom class) leaves the tensors at their initialisation.

    ## What to do
    Load with `from_pretrained` of a release that knows the conversion, or convert the checkpoint once and save it.
    """

    code = "D521"
    name = "conversion-not-applied"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.LOAD, Section.PLAN)
    tags = (READ_FILES,)

    noun = "tensor"

    def subjects(self, facts: Facts) -> Iterator[tuple[TensorPlan, _Report]]:
        load = facts.require(Section.LOAD)
        if not load.reported:
            raise NotEvaluated("no load report was retained, only the recorded conversions")
        report = _Report(set(load.missing), set(load.unexpected))
        for tensor in facts.require(Section.PLAN).tensors:
            yield tensor, report

    def judge(self, subject: tuple[TensorPlan, _Report], facts: Facts) -> Iterable[Finding]:
        tensor, report = subject
        wanted = tensor.status == "loaded" and tensor.name in report.missing
        return (self._finding(tensor),) if wanted and report.unexpected.issuperset(tensor.sources) else ()

    def _finding(self, tensor: TensorPlan) -> Finding:
        how = " and ".join(tensor.operations) or "renaming"
        many = counted(len(tensor.sources), "stored key is", "stored keys are")
        return self.finding(
            subject=tensor.name,
            message=f"{tensor.name} is reported missing, and {many} for it through "
            f"{how}: {', '.join(tensor.sources[:2])}",
            evidence={"sources": tensor.sources[:50], "operations": tensor.operations},
        )
