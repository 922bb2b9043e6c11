"""V004 export-differs."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Examined, Facts, Finding, HeavyRule, LiveTarget, NotEvaluated, Phase, Severity, SubjectKind
from shardlint.names import counted
from shardlint.weights import ExportUnknownError, check_export
from shardlint_rules._files import READ_FILES

from ._flat import FLATTENED, flattened

_SEVERITY = {
    "reload": Severity.ERROR,
    "operation": Severity.ERROR,
    "place": Severity.WARNING,
    "shape": Severity.WARNING,
}
_SHOWN = 20


class ExportDiffers(HeavyRule):
    """
    Exporting the live model in its original format would not give the checkpoint back.

    ## What it does
    Runs the reverse conversions of the load as `save_pretrained` does, on tensors without values, and puts them behind
    the load: a right export has exactly the keys of the checkpoint, their shapes, and every element at its place. Then
    it plans loading the export. An error is an export that cannot be written, or that does not give the live model
    back when it is loaded; a warning is a stored key that would hold other elements or have another shape, although
    this loader undoes it; keys under other names, not written or new are information. It says nothing about the
    loaded weights, which are V002's: a model may be loaded rightly and not be exportable.

    ## Why it is unsafe
    The checkpoints that a run exports are read by other programs, or by the next run. Elements at another place load
    silently, as a wrong model; what is written under other names stays at its initialisation.

    ## What to do
    Give the operation that is named a working reverse, or record the conversions of the load
    (`shardlint.weights.record_conversions`). Otherwise export with `save_original_format=False` and load that. When
    the original checkpoint has another form on purpose (older names, padding), ignore this rule for the run.
    """

    code = "V004"
    name = "export-differs"
    phase = Phase.V0
    severity = Severity.WARNING
    tags = (READ_FILES,)
    related_config = ("checkpoint.renames",)

    noun = "stored key"

    def unready(self, facts: Facts, live: LiveTarget) -> str:
        if live.model is None or live.checkpoint is None:
            return "it compares the export of a live model with the checkpoint that was loaded into it"
        return FLATTENED if flattened(facts) else ""

    def check_live(self, facts: Facts, live: LiveTarget) -> Iterator[Finding | Examined]:
        if live.model is None or live.checkpoint is None or self.unready(facts, live):
            raise NotEvaluated(self.unready(facts, live))
        try:
            groups = check_export(
                live.model,
                live.checkpoint,
                model_facts=facts.model,
                checkpoint_facts=facts.checkpoint,
                contract=facts.contract,
                renames=live.renames,
            )
        except ExportUnknownError as error:
            raise NotEvaluated(str(error)) from error
        stored = len(facts.checkpoint.entries) if facts.checkpoint else 1
        yield Examined(judged=stored, evidence=f"{counted(stored, 'stored key')} against what saving would write")
        for group in groups:
            first = group.first
            more = f" ({group.count} like this)" if group.count > 1 else ""
            yield self.finding(
                subject=group.subject,
                kind=SubjectKind.TENSOR
                if first.live and first.what != "renamed"
                else SubjectKind.KEY
                if first.key
                else SubjectKind.PATTERN,
                message=f"this export is not reversible: {first.operation or 'loading'}: {first.message}{more}",
                severity=_SEVERITY.get(first.what, Severity.INFO),
                evidence={
                    "live": group.live[:_SHOWN],
                    "keys": group.keys[:_SHOWN],
                    "operation": first.operation,
                    "first": first.first,
                    "count": group.count,
                },
                key=f"{first.what}:{first.key}",
            )
