"""The counts of a report and the line that always comes last."""

from __future__ import annotations

from collections import Counter

import msgspec

from ..engine.runner import Outcome, Status
from ..facts import FrozenDict, Section
from ..names import counted
from ..rule import Severity
from .layout import wrap
from .model import Report, Verdict
from .options import ReportOptions
from .style import Style

_SECTION_NOUNS = {
    "build": "a builder",
    "model": "a model",
    "checkpoint": "a checkpoint",
    "load": "a load report",
    "contract": "a contract",
    "data": "a data pipeline",
    "plan": "a load plan",
    "optimizer": "an optimizer",
    "runtime": "a traced step",
    "ranks": "facts of several ranks",
}
_VERDICT_STYLE = {Verdict.PASS: ("bold", "green"), Verdict.FAIL: ("bold", "red"), Verdict.BLOCKED: ("bold", "red")}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How many findings of each severity, and how many rules ended in each status."""

    errors: int
    warnings: int
    infos: int
    suppressed: int
    rules: int
    statuses: FrozenDict  # status value -> number of rules


def summarise(report: Report) -> Summary:
    """Count what is in `report`."""
    severities = Counter(finding.severity for finding in report.findings)
    statuses = Counter(outcome.status for outcome in report.outcomes)
    return Summary(
        errors=severities[Severity.ERROR],
        warnings=severities[Severity.WARNING],
        infos=severities[Severity.INFO],
        suppressed=len(report.suppressed),
        rules=len(report.outcomes),
        statuses=FrozenDict({status.value: statuses[status] for status in Status}),
    )


def last_line(report: Report, style: Style, options: ReportOptions) -> str:
    """
    The summary line with its end of line. On a terminal it is broken between words, so that the terminal breaks none;
    in files and pipes it stays one line, for `tail -1`.
    """
    line = summary_line(report)
    lines = wrap(line, options.width, "", "  ") if options.terminal else [line]
    return "".join(f"{_painted(text, report, style)}\n" for text in lines)


def summary_line(report: Report, style: Style | None = None) -> str:
    """The last line of every report for people: findings, what became of the rules and why, the verdict."""
    count = summarise(report)
    findings = list(_severities(count).values())
    findings += [f"{count.suppressed:,} suppressed"] if count.suppressed else []
    parts = [", ".join(findings), f"{counted(count.rules, 'rule')}: {_rules(report, count)}"]
    parts += ["the coverage of the checkpoint is unknown"] if unknown_coverage(report) else []
    return _painted(" | ".join([*parts, report.verdict.value]), report, style or Style())


def unknown_coverage(report: Report) -> str:
    """Why nobody knows whether the checkpoint fills the model; empty when that is known, or there is none."""
    return str(report.coverage.get("reason", "")) if report.coverage else ""


def _severities(count: Summary) -> dict[Severity, str]:
    counts = {Severity.ERROR: counted(count.errors, "error"), Severity.WARNING: counted(count.warnings, "warning")}
    return counts | ({Severity.INFO: counted(count.infos, "info")} if count.infos else {})


def _painted(line: str, report: Report, style: Style) -> str:
    """The line, or a part of it, with the colours of severities that were found and of the verdict."""
    for severity, text in _severities(summarise(report)).items():
        line = line if text.startswith("0 ") else line.replace(text, style.severity(severity, text), 1)
    verdict = report.verdict.value
    return line.replace(verdict, style.paint(verdict, *_VERDICT_STYLE[report.verdict]), 1)


def _rules(report: Report, count: Summary) -> str:
    parts = [f"{count.statuses['found']} found", f"{count.statuses['clean']} clean"]
    if count.statuses["not-evaluated"]:
        parts.append(f"{count.statuses['not-evaluated']} not evaluated ({_lacking(report.outcomes)})")
    parts += [f"{count.statuses['nothing-to-judge']} not applicable"] if count.statuses["nothing-to-judge"] else []
    partial = sum(1 for outcome in report.outcomes if outcome.partial)
    parts += [f"{partial} only partly evaluated"] if partial else []
    parts += [f"{count.statuses['blocked']} blocked"] if count.statuses["blocked"] else []
    parts += [f"{count.statuses['crashed']} crashed"] if count.statuses["crashed"] else []
    parts += [f"{count.statuses['left-out']} heavy left out"] if count.statuses["left-out"] else []
    return ", ".join(parts)


def _lacking(outcomes: tuple[Outcome, ...]) -> str:
    """`4 need a checkpoint, 1 lacks facts`: the commonest first, equal counts in the order of evaluation."""
    lacking = Counter(_noun(outcome) for outcome in outcomes if outcome.status is Status.NOT_EVALUATED)
    ordered = sorted(lacking.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{number} {_verb(noun, number)} {noun or 'facts'}" for noun, number in ordered)


def _noun(outcome: Outcome) -> str:
    """What the rule needs, in words; empty when it found out for itself that it lacks something."""
    return section_noun(outcome.lacks[0]) if outcome.lacks else ""


def _verb(noun: str, number: int) -> str:
    return ("need" if noun else "lack") + ("s" if number == 1 else "")


def section_noun(section: Section) -> str:
    """`a checkpoint` for the section checkpoint."""
    return _SECTION_NOUNS.get(section.value, f"{section.value} facts")
