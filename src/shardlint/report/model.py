"""The report: everything a run found out, ready for any output format."""

from __future__ import annotations

import enum

from attrs import field, frozen

from ..engine.runner import Outcome, Status
from ..engine.suppressions import SuppressedFinding
from ..facts import EMPTY, FrozenDict
from ..names import counted, ranges
from ..rule import Finding, Severity

REPORT_VERSION = 1
_UNTRUSTED = ("SL002", "SL008", "SL009", "SL010")  # rules or work that a run was to have, and has not


class Verdict(enum.Enum):
    """PASS: exit 0. FAIL: findings at or above the fail level, exit 1. BLOCKED: cannot be trusted, exit 2."""

    PASS = "PASS"
    FAIL = "FAIL"
    BLOCKED = "BLOCKED"

    @property
    def exit_status(self) -> int:
        """The exit status of the command."""
        return {"PASS": 0, "FAIL": 1, "BLOCKED": 2}[self.value]


@frozen(kw_only=True)
class Report:
    """
    What a run found out. `fail_level` is None when no severity fails the run.

    `blocked_by` lists why the run cannot be trusted (crashed rules, failed packs, explicitly selected rules that were
    not evaluated, heavy rules that did not check everything); it is empty when it can.
    """

    version: int = REPORT_VERSION
    tool: str = ""
    target: str = ""
    verdict: Verdict
    fail_level: Severity | None = Severity.ERROR
    findings: tuple[Finding, ...] = ()
    suppressed: tuple[SuppressedFinding, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    blocked_by: tuple[str, ...] = ()
    metadata: FrozenDict = EMPTY
    coverage: FrozenDict | None = None
    seconds: float = field(default=0.0, eq=False)

    @property
    def exit_status(self) -> int:
        """0, 1 or 2: see `Verdict`."""
        return self.verdict.exit_status

    def __str__(self) -> str:
        """The text report, as the command line would write it to a file."""
        from io import StringIO

        from .options import ReportOptions
        from .text import write_text

        stream = StringIO()
        write_text(self, stream, ReportOptions())
        return stream.getvalue()

    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity error."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    def raise_for_errors(self) -> None:
        """Raise one `LintError` that lists every error, and every reason why the run cannot be trusted."""
        if self.errors() or self.blocked_by:
            raise LintError(self)


class LintError(Exception):
    """A lint that found errors, or that cannot be trusted. `report` holds everything."""

    def __init__(self, report: Report) -> None:
        self.report = report
        lines = [
            f"{error.code} {error.name} {error.subject}: {error.message}{_on_ranks(error.ranks)}"
            for error in report.errors()
        ]
        lines += [f"not trustworthy: {reason}" for reason in report.blocked_by]
        super().__init__(f"shardlint found {counted(len(report.errors()), 'error')}\n" + "\n".join(lines))


def _on_ranks(numbers: tuple[int, ...]) -> str:
    """The ranks that a finding concerns, in words; empty when it concerns all."""
    return f" (rank{'s' if len(numbers) > 1 else ''} {ranges(numbers)})" if numbers else ""


def verdict_of(findings: tuple[Finding, ...], blocked_by: tuple[str, ...], fail_level: Severity | None) -> Verdict:
    """BLOCKED beats FAIL, FAIL beats PASS."""
    if blocked_by:
        return Verdict.BLOCKED
    failing = fail_level is not None and any(fail_level <= finding.severity for finding in findings)
    return Verdict.FAIL if failing else Verdict.PASS


def untrusted(outcomes: tuple[Outcome, ...], findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Every reason why a run with these outcomes and findings cannot be trusted."""
    reasons = [
        f"{outcome.code} {outcome.name} crashed: {outcome.reason}"
        for outcome in outcomes
        if outcome.status is Status.CRASHED
    ]
    skipped = (Status.NOT_EVALUATED, Status.BLOCKED)
    reasons += [
        f"{outcome.code} {outcome.name} was selected by name and is {outcome.status.value}: {outcome.reason}"
        for outcome in outcomes
        if outcome.explicit and (outcome.status in skipped or outcome.partial)
    ]
    reasons += [
        f"{outcome.code} {outcome.name} has not looked at everything: {outcome.reason}"
        for outcome in outcomes
        if outcome.unfinished and not outcome.explicit
    ]
    reasons += [f"{finding.code} {finding.message}" for finding in findings if finding.code in _UNTRUSTED]
    return tuple(reasons)
