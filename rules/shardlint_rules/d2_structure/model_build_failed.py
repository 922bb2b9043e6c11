"""D201 model-build-failed."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import BuildFacts


class ModelBuildFailed(Rule):
    """
    Building the model raised. Nothing else is evaluated.

    ## What it does
    Reports the exception that the builder raised: its type, its text, and the innermost frame of the user's own code.

    ## Why it is unsafe
    There is no model to look at, so no other rule can say anything about it.

    ## What to do
    Fix the builder at the frame that the finding names, then lint again.
    """

    code = "D201"
    name = "model-build-failed"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.BUILD,)
    blocks = ("ALL",)

    noun = "builder"

    def subjects(self, facts: Facts) -> Iterator[BuildFacts]:
        yield facts.require(Section.BUILD)

    def judge(self, subject: BuildFacts, facts: Facts) -> Iterator[Finding]:
        if subject.failed:
            where = f" at {subject.frame}" if subject.frame else ""
            yield self.finding(
                subject=subject.builder,
                kind=SubjectKind.MODEL,
                message=f"{subject.builder} raised {subject.error_type}: {subject.error}{where}",
                evidence={"error_type": subject.error_type, "error": subject.error, "frame": subject.frame},
            )

    def subject_name(self, subject: BuildFacts) -> str:
        return subject.builder
