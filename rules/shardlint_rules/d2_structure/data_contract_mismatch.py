"""D205 data-contract-mismatch."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind


class DataContractMismatch(Rule):
    """
    The resolved data pipeline disagrees with what the contract says of the batches.

    ## What it does
    Compares the data pipeline with the contract's data semantics: runtime fields that nothing provides, labels that are
    shifted by one side and not by the other, a processor revision that is required and not pinned.

    ## Why it is unsafe
    The model trains on batches that mean something else than it takes them for. Labels shifted twice, or never, still
    give a falling loss.

    ## What to do
    Fix the pipeline, or correct the contract, until both say the same.
    """

    code = "D205"
    name = "data-contract-mismatch"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.CONTRACT, Section.DATA)
    related_config = ("contract.data",)

    def check(self, facts: Facts) -> Iterator[Finding]:
        contract = facts.require(Section.CONTRACT)
        declared, data = contract.data, facts.require(Section.DATA)
        if declared is None:
            raise NotEvaluated("the contract declares no data semantics")
        for name in declared.runtime_fields:
            if name not in data.runtime_fields:
                yield self._mismatch(name, "provided at run time", "not among the pipeline's runtime fields")
        if declared.processor_revision_required and not data.processor_revision:
            yield self._mismatch("processor_revision", "pinned", "not given")
        if declared.labels_shifted is None:
            return
        if data.labels_shifted is None:
            raise NotEvaluated("the data pipeline does not say whether it shifts the labels")
        if declared.labels_shifted != data.labels_shifted:
            yield self._mismatch("labels", _shift(declared.labels_shifted), _shift(data.labels_shifted))

    def _mismatch(self, subject: str, expected: str, found: str) -> Finding:
        return self.finding(
            subject=subject,
            kind=SubjectKind.FIELD,
            message=f"{subject}: expected to be {expected}, found {found}",
            evidence={"expected": expected, "found": found},
        )


def _shift(shifted: bool) -> str:
    return "shifted by the pipeline" if shifted else "left as they are by the pipeline"
