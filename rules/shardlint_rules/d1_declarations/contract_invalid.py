"""D102 contract-invalid."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import ContractFacts


class ContractInvalid(Rule):
    """
    A contract, its provider, or one of its fields cannot be used.

    ## What it does
    Reports every problem that was met while the contract was looked up and read: a provider that cannot be called,
    that raised, or that returned something else than a contract; a field whose value is malformed; a buffer's recipe
    that raised, that changed the model, or that returned no tensor of the buffer's shape.

    ## Why it is unsafe
    A contract that cannot be used checks nothing. Taken for "no contract", it would turn every declaration of the
    model's owner into silence.

    ## What to do
    Fix the provider or the field that the finding names, or take the contract away on purpose.
    """

    code = "D102"
    name = "contract-invalid"
    phase = Phase.D1
    severity = Severity.ERROR
    needs = (Section.CONTRACT,)
    related_config = ("contract",)

    noun = "contract"

    def subjects(self, facts: Facts) -> Iterator[ContractFacts]:
        yield facts.require(Section.CONTRACT)

    def judge(self, subject: ContractFacts, facts: Facts) -> Iterator[Finding]:
        for number, problem in enumerate(subject.problems):
            yield self.finding(
                subject=problem.where,
                kind=SubjectKind.CONFIG,
                message=f"{problem.where} cannot be used: {problem.error}",
                evidence={"source": subject.source, "error": problem.error},
                key=str(number),
            )
