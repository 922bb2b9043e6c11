"""D527 rename-without-effect."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import RenameFacts
from shardlint.names import counted, listed
from shardlint_rules._files import READ_FILES


class RenameWithoutEffect(Rule):
    r"""
    A renaming in the settings matches no stored key, or gives several keys one name.

    ## What it does
    Applies the entries of `checkpoint.renames` in turn to the stored keys, as the load plan does: `from` is a regular
    expression that is searched in the key, `to` what replaces each match. It reports entries that match nothing, that
    are no regular expression, and entries after which keys have the same name that had different ones before.

    ## Why it is unsafe
    An entry without effect means that the tensors it was written for are looked for under names that nobody gives
    them. Of keys that are merged one is loaded and the others are dropped without a word.

    ## What to do
    Correct the expression: `from: '^transformer\.h\.(\d+)'`, `to: 'layers.\1'`. A `*` is no placeholder there. Take
    entries away that an earlier one, or the loader itself, makes needless.
    """

    code = "D527"
    name = "rename-without-effect"
    phase = Phase.D5
    severity = Severity.WARNING
    needs = (Section.CHECKPOINT,)
    tags = (READ_FILES,)
    noun = "renaming"
    related_config = ("checkpoint.renames",)

    def subjects(self, facts: Facts) -> Iterator[RenameFacts]:
        checkpoint = facts.require(Section.CHECKPOINT)
        if checkpoint.entries:
            yield from checkpoint.renames

    def judge(self, subject: RenameFacts, facts: Facts) -> Iterator[Finding]:
        stored = counted(len(facts.require(Section.CHECKPOINT).entries), "stored key")
        if subject.problem != "":
            yield self._finding(subject, f"it cannot be used: {subject.problem}")
        elif subject.matched == 0:
            yield self._finding(subject, f"it matches none of {stored}")
        elif len(subject.merged) > 0:
            text = f"afterwards {counted(len(subject.merged), 'key')} have a name that another one has"
            yield self._finding(subject, f"{text}: {listed(subject.merged, 3)}")

    def subject_name(self, subject: object) -> str:
        return _text(subject) if isinstance(subject, RenameFacts) else super().subject_name(subject)

    def _finding(self, rename: RenameFacts, message: str) -> Finding:
        return self.finding(
            subject=_text(rename),
            kind=SubjectKind.CONFIG,
            message=message,
            evidence={"from": rename.source, "to": rename.target, "matched": rename.matched, "merged": rename.merged},
        )


def _text(rename: RenameFacts) -> str:
    return f"{rename.source} -> {rename.target}"
