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

    noun = "declaration"

    def subjects(self, facts: Facts) -> Iterator[tuple[str, str]]:
        """What the contract says of the batches: each a kind of declaration and the name of what it is about."""
        declared = facts.require(Section.CONTRACT).data
        if declared is None:
            return
        yield from (("runtime field", name) for name in declared.runtime_fields)
        if declared.processor_revision_required:
            yield "processor", "processor_revision"
        if declared.labels_shifted is not None:
            yield "labels", "labels"

    def judge(self, subject: tuple[str, str], facts: Facts) -> Iterator[Finding]:
        kind, name = subject
        data = facts.require(Section.DATA)
        if kind == "labels":
            yield from self._labels(facts)
        elif kind == "processor":
            if not data.processor_revision:
                yield self._mismatch(name, "pinned", "not given")
        elif name not in data.runtime_fields:
            yield self._mismatch(name, "provided at run time", "not among the pipeline's runtime fields")

    def subject_name(self, subject: tuple[str, str]) -> str:
        return subject[1]

    def _labels(self, facts: Facts) -> Iterator[Finding]:
        semantics, shifted = facts.require(Section.CONTRACT).data, facts.require(Section.DATA).labels_shifted
        declared = semantics.labels_shifted if semantics is not None else None
        if shifted is None:
            raise NotEvaluated("the data pipeline does not say whether it shifts the labels")
        if declared is not None and declared != shifted:
            yield self._mismatch("labels", _shift(declared), _shift(shifted))

    def _mismatch(self, subject: str, expected: str, found: str) -> Finding:
        return self.finding(
            subject=subject,
            kind=SubjectKind.FIELD,
            message=f"{subject}: expected to be {expected}, found {found}",
            evidence={"expected": expected, "found": found},
        )


def _shift(shifted: bool) -> str:
    return "shifted by the pipeline" if shifted else "left as they are by the pipeline"
