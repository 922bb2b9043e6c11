"""D510 prefix-mismatch."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import WHOLE, Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.prefixes import prefix_change
from shardlint_rules._files import WHOLE_CHECKPOINT
from shardlint_rules._sides import side_of


class PrefixMismatch(Rule):
    r"""
    Almost no stored key has a live tensor, and almost every one would have after one change of prefix.

    ## What it does
    When at most a tenth of the live tensors have a source, tries what wrappers and saving habits put into names:
    `module.` of data parallelism, `_orig_mod.` of compilation, `_checkpoint_wrapped_module.`, a prefix that all stored
    keys share, and a prefix that all live names share. Names the one change after which nine tenths match, instead of
    every single key.

    ## Why it is unsafe
    A loader that is not strict reports thousands of missing keys once, in one long line, and starts from random values.

    ## What to do
    Remove or add the prefix when saving (save the wrapped module, not the wrapper), or declare it as a renaming in
    `checkpoint.renames` (`{from: '^module\\.(.*)', to: '\\1'}` removes `module.`).
    """

    code = "D510"
    name = "prefix-mismatch"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.PLAN,)
    tags = (WHOLE_CHECKPOINT,)
    blocks = ("D501",)
    related_config = ("checkpoint.renames",)

    noun = "load plan"

    def subjects(self, facts: Facts) -> Iterator[object]:
        if facts.require(Section.PLAN).tensors:
            yield WHOLE

    def judge(self, subject: object, facts: Facts) -> Iterator[Finding]:
        plan = facts.require(Section.PLAN)
        explained = prefix_change(plan)
        if explained is None:
            return
        change, missing, hits = explained.change, explained.missing, explained.hits
        yield self.finding(
            subject=change.part,
            kind=SubjectKind.PATTERN,
            message=f"{missing} of {len(plan.tensors)} {side_of(facts).tensors} have no source, and {hits} would have "
            f"one after {_SAYINGS[change.kind].format(part=change.part)}: {explained.key} is for {explained.name}",
            evidence={"change": change.kind, "part": change.part, "would_match": hits, "missing": missing},
        )


_SAYINGS = {
    "remove-prefix": "the prefix {part} is removed from the stored keys",
    "add-prefix": "the prefix {part} is put before the stored keys",
    "remove-wrapper": "the wrapper's segment {part} is removed from the stored keys",
}
