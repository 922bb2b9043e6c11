"""The counts of a report and the line that always comes last."""

from __future__ import annotations

from collections import Counter

import msgspec

from ..facts import FrozenDict, Section
from ..rule import Severity
from ..runner import Outcome, Status
from .layout import counted
from .model import Report, Verdict
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
    severities = Counter(item.severity for item in report.findings)
    statuses = Counter(item.status for item in report.outcomes)
    return Summary(
        errors=severities[Severity.ERROR],
        warnings=severities[Severity.WARNING],
        infos=severities[Severity.INFO],
        suppressed=len(report.suppressed),
        rules=len(report.outcomes),
        statuses=FrozenDict({status.value: statuses[status] for status in Status}),
    )


def summary_line(report: Report, style: Style | None = None) -> str:
    """The last line of every report for people: findings, what became of the rules and why, the verdict."""
    style = style or Style()
    count = summarise(report)
    findings = [
        style.severity(Severity.ERROR, counted(count.errors, "error")) if count.errors else "0 errors",
        style.severity(Severity.WARNING, counted(count.warnings, "warning")) if count.warnings else "0 warnings",
    ]
    findings += [style.severity(Severity.INFO, counted(count.infos, "info"))] if count.infos else []
    findings += [f"{count.suppressed:,} suppressed"] if count.suppressed else []
    verdict = style.paint(report.verdict.value, *_VERDICT_STYLE[report.verdict])
    parts = [", ".join(findings), f"{counted(count.rules, 'rule')}: {_rules(report, count)}"]
    parts += ["the coverage of the checkpoint is unknown"] if unknown_coverage(report) else []
    return " | ".join([*parts, verdict])


def unknown_coverage(report: Report) -> str:
    """Why nobody knows whether the checkpoint fills the model; empty when that is known, or there is none."""
    return str(report.coverage.get("reason", "")) if report.coverage else ""


def _rules(report: Report, count: Summary) -> str:
    parts = [f"{count.statuses['found']} found", f"{count.statuses['clean']} clean"]
    if count.statuses["not-evaluated"]:
        parts.append(f"{count.statuses['not-evaluated']} not evaluated ({_lacking(report.outcomes)})")
    partial = sum(1 for item in report.outcomes if item.partial)
    parts += [f"{partial} only partly evaluated"] if partial else []
    parts += [f"{count.statuses['blocked']} blocked"] if count.statuses["blocked"] else []
    parts += [f"{count.statuses['crashed']} crashed"] if count.statuses["crashed"] else []
    parts += [f"{count.statuses['left-out']} heavy left out"] if count.statuses["left-out"] else []
    return ", ".join(parts)


def _lacking(outcomes: tuple[Outcome, ...]) -> str:
    """`4 need a checkpoint, 1 lacks facts`: the commonest first, equal counts in the order of evaluation."""
    lacking = Counter(_noun(item) for item in outcomes if item.status is Status.NOT_EVALUATED)
    ordered = sorted(lacking.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{number} {_verb(noun, number)} {noun or 'facts'}" for noun, number in ordered)


def _noun(item: Outcome) -> str:
    """What the rule needs, in words; empty when it found out for itself that it lacks something."""
    return section_noun(item.lacks[0]) if item.lacks else ""


def _verb(noun: str, number: int) -> str:
    return ("need" if noun else "lack") + ("s" if number == 1 else "")


def section_noun(section: Section) -> str:
    """`a checkpoint` for the section checkpoint."""
    return _SECTION_NOUNS.get(section.value, f"{section.value} facts")
