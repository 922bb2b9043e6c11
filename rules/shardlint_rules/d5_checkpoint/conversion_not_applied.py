"""D521 conversion-not-applied."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.names import counted
from shardlint_rules._files import READ_FILES


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        load = facts.require(Section.LOAD)
        plan = facts.require(Section.PLAN)
        if not load.reported:
            raise NotEvaluated("no load report was retained, only the recorded conversions")
        missing, unexpected = set(load.missing), set(load.unexpected)
        for tensor in plan.tensors:
            if tensor.status != "loaded" or tensor.name not in missing or not unexpected.issuperset(tensor.sources):
                continue
            how = " and ".join(tensor.operations) or "renaming"
            many = counted(len(tensor.sources), "stored key is", "stored keys are")
            yield self.finding(
                subject=tensor.name,
                message=f"{tensor.name} is reported missing, and {many} for it through "
                f"{how}: {', '.join(tensor.sources[:2])}",
                evidence={"sources": tensor.sources[:50], "operations": tensor.operations},
            )
