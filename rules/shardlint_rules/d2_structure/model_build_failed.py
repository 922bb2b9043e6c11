"""D201 model-build-failed."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        build = facts.require(Section.BUILD)
        if build.failed:
            where = f" at {build.frame}" if build.frame else ""
            yield self.finding(
                subject=build.builder,
                kind=SubjectKind.MODEL,
                message=f"{build.builder} raised {build.error_type}: {build.error}{where}",
                evidence={"error_type": build.error_type, "error": build.error, "frame": build.frame},
            )
