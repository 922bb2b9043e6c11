"""
What was asked for and not done: a selector of which nothing ran, heavy work, a checkpoint that nobody read.

A run that leaves out what its user named is never a PASS. Each such wish is a finding of its own (SL009).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from ..diagnostics import diagnostic
from ..facts import CheckpointFacts, Facts
from ..names import counted
from ..rule import Cost, Finding, Severity, SubjectKind
from .runner import Outcome, SelectedRule, Status


@frozen(kw_only=True)
class Wish:
    """A selector that a user wrote to have rules run: where it was written, and the codes that it covers."""

    selector: str
    source: str
    codes: frozenset[str]


def undone(
    wishes: Iterable[Wish],
    outcomes: Sequence[Outcome],
    rules: Iterable[SelectedRule],
    *,
    heavy: bool,
    facts: Facts,
    findings: Sequence[Finding],
) -> tuple[Finding, ...]:
    """SL009 for every wish of which nothing was done, and for a run in which nothing was judged at all."""
    found = list(_selectors(wishes, outcomes))
    if heavy:
        heavy_codes = {selected.rule.code for selected in rules if selected.rule.cost is Cost.HEAVY}
        found += _heavy([outcome for outcome in outcomes if outcome.code in heavy_codes])
    if facts.checkpoint is not None and not _failed_by_files(findings):
        found += _unread(facts.checkpoint)
    if not found and not any(_done(outcome) or outcome.status is Status.CRASHED for outcome in outcomes):
        found.append(_finding("run", f"no rule judged anything: {_why(outcomes)}"))
    return tuple(found)


def _done(outcome: Outcome) -> bool:
    return bool(outcome.judged or outcome.findings)


def _selectors(wishes: Iterable[Wish], outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    for wish in wishes:
        covered = [outcome for outcome in outcomes if outcome.code in wish.codes]
        stopped = any(outcome.status in (Status.BLOCKED, Status.CRASHED) for outcome in covered)
        if covered and not stopped and not any(_done(outcome) for outcome in covered):
            text = f"{wish.source} asks for {wish.selector} ({counted(len(covered), 'rule')}), and none judged anything"
            yield _finding(wish.selector, f"{text}: {_why(covered)}")


def _heavy(outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    """What a gate blocked is told by the gate's own finding."""
    stopped = any(outcome.status in (Status.BLOCKED, Status.CRASHED) for outcome in outcomes)
    if outcomes and not stopped and not any(_done(outcome) for outcome in outcomes):
        yield _finding("--heavy", f"heavy rules were asked for, and none could read any weight: {_why(outcomes)}")


def _failed_by_files(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Severity.ERROR and finding.kind is SubjectKind.FILE for finding in findings)


def _unread(checkpoint: CheckpointFacts) -> Iterator[Finding]:
    if not checkpoint.entries:
        text = f"the checkpoint {checkpoint.path!r} was named, and none of its tensors was read"
        yield _finding(checkpoint.path, f"{text}: its format is {checkpoint.format or 'unknown'}")


def _why(outcomes: Iterable[Outcome]) -> str:
    """The commonest reason, in the words of the outcomes; of equal ones the first."""
    reasons: dict[str, int] = {}
    for outcome in outcomes:
        reason = outcome.reason or "there is nothing of the kind that they judge"
        reasons[reason] = reasons.get(reason, 0) + 1
    return max(reasons, key=lambda reason: reasons[reason], default="no rule was selected")


def _finding(subject: str, message: str) -> Finding:
    return diagnostic("SL009", subject=subject, message=message, kind=SubjectKind.CONFIG)
