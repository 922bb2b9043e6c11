"""D103 replacement-unmatched."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.keys import Candidates
from shardlint.facts import ReplacementFacts


class ReplacementUnmatched(Rule):
    """
    A declared module replacement matched no module of the final tree.

    ## What it does
    Takes every module replacement that the contract declares and looks for the modules that it produced.

    ## Why it is unsafe
    The run trains the original modules: the fused kernel, the parallel layer or the patched forward that was to be
    put in their place is not there, and nothing else says so.

    ## What to do
    Correct the pattern: module names change when a model is renamed, wrapped or upgraded. Delete the replacement if the
    model no longer has such modules.
    """

    code = "D103"
    name = "replacement-unmatched"
    phase = Phase.D1
    severity = Severity.ERROR
    needs = (Section.CONTRACT, Section.MODEL)
    related_config = ("contract.replacements",)

    noun = "replacement"

    def subjects(self, facts: Facts) -> Iterator[tuple[ReplacementFacts, Candidates]]:
        modules = facts.require(Section.MODEL).modules
        candidates = Candidates(tuple(module.fqn for module in modules if module.fqn))
        for replacement in facts.require(Section.CONTRACT).replacements:
            yield replacement, candidates

    def judge(self, subject: tuple[ReplacementFacts, Candidates], facts: Facts) -> Iterator[Finding]:
        replacement, candidates = subject
        if replacement.matched:
            return
        near = candidates.near(replacement.pattern)
        hint = f"; the nearest {'module is' if len(near) == 1 else 'modules are'} {', '.join(near)}" if near else ""
        yield self.finding(
            subject=replacement.pattern,
            kind=SubjectKind.PATTERN,
            message=f"the replacement of {replacement.pattern!r} by {replacement.replacement} matched no module{hint}",
            evidence={"replacement": replacement.replacement, "nearest": near},
        )

    def subject_name(self, subject: tuple[ReplacementFacts, Candidates]) -> str:
        return subject[0].pattern
