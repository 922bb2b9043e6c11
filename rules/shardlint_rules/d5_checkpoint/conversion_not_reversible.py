"""D502 conversion-not-reversible."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import ConversionFacts, known


class ConversionNotReversible(Rule):
    """
    A weight conversion that was applied while loading has no working reverse.

    ## What it does
    Takes every conversion that the load recorded and reports those without a `reverse_transform` that can be called and
    does not raise.

    ## Why it is unsafe
    Saving has to undo the conversion. Without a reverse, the checkpoints of this run have names or layouts that the
    next load does not read, which shows when somebody resumes.

    ## What to do
    Give the conversion's operations a reverse, or plan to save in the live layout and load it with the same conversion
    left out.
    """

    code = "D502"
    name = "conversion-not-reversible"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.LOAD,)

    noun = "conversion"

    def subjects(self, facts: Facts) -> Iterator[tuple[int, ConversionFacts]]:
        return enumerate(facts.require(Section.LOAD).conversions)

    def judge(self, subject: tuple[int, ConversionFacts], facts: Facts) -> Iterator[Finding]:
        number, conversion = subject
        error = known(conversion.reverse_error)
        if error is None:
            return
        sources = ", ".join(conversion.sources)
        yield self.finding(
            subject=self.subject_name(subject),
            kind=SubjectKind.PATTERN,
            message=f"{conversion.qualified_type} from {sources} cannot be reversed: {error.rstrip(': ')}; saving this "
            "model in its stored layout fails",
            evidence={
                "type": conversion.qualified_type,
                "operations": conversion.operations,
                "sources": conversion.sources,
                "targets": conversion.targets,
                "error": error,
            },
            key=str(number),
        )

    def subject_name(self, subject: tuple[int, ConversionFacts]) -> str:
        _, conversion = subject
        return ", ".join(conversion.targets) or conversion.qualified_type
