"""D103 replacement-unmatched."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.keys import Candidates


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        contract = facts.require(Section.CONTRACT)
        model = facts.require(Section.MODEL)
        lost = [replacement for replacement in contract.replacements if not replacement.matched]
        if not lost:
            return
        candidates = Candidates(tuple(module.fqn for module in model.modules if module.fqn))
        for unmatched in lost:
            near = candidates.near(unmatched.pattern)
            hint = f"; the nearest {'module is' if len(near) == 1 else 'modules are'} {', '.join(near)}" if near else ""
            yield self.finding(
                subject=unmatched.pattern,
                kind=SubjectKind.PATTERN,
                message=f"the replacement of {unmatched.pattern!r} by {unmatched.replacement} matched no module{hint}",
                evidence={"replacement": unmatched.replacement, "nearest": near},
            )
