"""The report for people: findings grouped by rule and collapsed, with evidence, why it matters and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TextIO

from ..engine.runner import Outcome, Status
from ..engine.suppressions import SuppressedFinding
from ..facts import FrozenDict
from ..names import counted, printable, ranges
from ..rule import Finding
from ..versions import untried
from .collapse import FindingGroup, groups
from .layout import MOST_ITEMS, labelled, paragraphs, plain, wrap
from .model import Report
from .options import ReportOptions
from .settings_used import settings_lines
from .style import Style
from .summary import last_line, unknown_coverage

MOST_ROWS = 20
MOST_REASONS = 10
MOST_RUNS = 6
_COLUMN = 12
_PLURALS = {"config": "config keys", "key": "keys"}


def write_text(report: Report, stream: TextIO, options: ReportOptions) -> None:
    """Write `report` for a reader. The last line sums up; with quiet it is the only one."""
    style = Style(options.color)
    if not options.quiet:
        for line in _body(report, options, style):
            stream.write(line + "\n")
    stream.write(last_line(report, style, options))


def _body(report: Report, options: ReportOptions, style: Style) -> Iterator[str]:
    yield from _head(report, options, style)
    for _, findings in groupby(report.findings, key=lambda finding: (finding.phase, finding.code, finding.severity)):
        yield from _rule(list(findings), options, style)
    if options.show_suppressed and report.suppressed:
        yield from _suppressed(report.suppressed, options, style)
    yield from _coverage(report, options, style)
    yield from _examined(report, options, style)
    yield from _outcomes(report, options, style)
    if options.timing:
        yield from _timing(report, style)
    yield from _blocked(report, options, style)


def _head(report: Report, options: ReportOptions, style: Style) -> Iterator[str]:
    facts = report.metadata
    model = facts.get("model")
    fallback = str(model["class"]) if model else "(no name)"
    yield style.paint(printable(report.target or fallback), "bold")
    if model:
        name = str(model["model_type"] or model["class"])
        counts = [counted(model[key], key[:-1]) for key in ("modules", "parameters", "buffers")]
        counts.append(counted(model["parameter_elements"], "element"))
        yield from wrap(f"{name}: {', '.join(counts)}", options.width, "  ")
    checkpoint = facts.get("checkpoint")
    if checkpoint:
        counts = [counted(checkpoint["tensors"], "tensor"), counted(checkpoint["files"], "file")]
        yield from wrap(f"{checkpoint['path']}: {checkpoint['format']}, {', '.join(counts)}", options.width, "  ")
    for line in settings_lines(facts.get("settings") or {}):
        yield from wrap(line, options.width, "  ")
    for warning in untried(facts.get("versions") or {}):
        yield from wrap(f"warning: {warning}; shardlint --version -v says what older ones limit", options.width, "  ")
    contract = facts.get("contract")
    if contract and (options.verbose or contract["replaces"]):
        replaced = f", in place of the one of {contract['replaces']}" if contract["replaces"] else ""
        yield from wrap(f"contract: {contract['source']}{replaced}", options.width, "  ")
    yield ""


def _rule(findings: Sequence[Finding], options: ReportOptions, style: Style) -> Iterator[str]:
    first = findings[0]
    head = f"{style.severity(first.severity)} {style.paint(f'{first.code} {first.name}', 'bold')}"
    yield head if len(findings) == 1 else f"{head} ({counted(len(findings), 'finding')})"
    rows = groups(findings, collapse=options.collapse)
    shared = all((row.first.why, row.first.remediation) == (first.why, first.remediation) for row in rows)
    shown = rows if options.verbose or len(rows) <= MOST_ROWS + 1 else rows[:MOST_ROWS]
    for row in shown:
        yield from _row(row, options, style)
        if not shared:
            yield from _advice(row.first, options, style, "    ")
    if len(shown) < len(rows):
        rest = sum(len(row.findings) for row in rows[len(shown) :])
        yield style.paint(f"  ... and {counted(rest, 'more finding')}: all with --verbose", "dim")
    if shared:
        yield from _advice(first, options, style, "  ")
    yield ""


def _row(row: FindingGroup, options: ReportOptions, style: Style) -> Iterator[str]:
    count = len(row.findings)
    suffix = f" ({counted(count, *_noun(row))})" if count > 1 else ""
    yield "  " + style.paint(printable(row.subject), "cyan") + suffix
    yield from paragraphs(row.message, options.width, "    ")
    yield from _evidence(row.evidence, options)
    owner = row.first.owner
    if owner and count == 1 and not f"{row.subject}.".startswith(f"{owner}."):
        yield from wrap(f"owner: {owner}", options.width, "      ")
    if row.first.ranks:
        yield from wrap(f"ranks: {ranges(row.first.ranks)}", options.width, "      ")


def _noun(row: FindingGroup) -> tuple[str, str]:
    kind = row.first.kind.value
    several = len({finding.subject for finding in row.findings}) > 1
    return (kind, _PLURALS.get(kind, kind + "s")) if several else ("finding", "findings")


def _evidence(evidence: FrozenDict, options: ReportOptions) -> Iterator[str]:
    for key, value in evidence.items():
        if value != "":
            text = f"{key.replace('_', ' ')}: {_value(key, value, options)}"
            yield from wrap(text, options.width, "      ", "        ")


def _value(key: str, value: Any, options: ReportOptions) -> str:
    empty = "[]" if key.endswith(("shape", "shapes")) else "none"  # the shape of a scalar is not the lack of a shape
    return plain(value, 10**9 if options.verbose else MOST_ITEMS, empty)


def _advice(finding: Finding, options: ReportOptions, style: Style, indent: str) -> Iterator[str]:
    texts = [("Why", finding.why), ("What to do", finding.remediation), ("Config", ", ".join(finding.related_config))]
    for label, text in texts:
        if text:
            first, *rest = labelled(label, text, options.width, indent, _COLUMN)
            yield first.replace(label, style.paint(label, "bold"), 1)
            yield from rest


def _suppressed(items: Sequence[SuppressedFinding], options: ReportOptions, style: Style) -> Iterator[str]:
    yield style.paint(f"Suppressed ({counted(len(items), 'finding')})", "bold")
    for suppressed in items:
        finding = suppressed.finding
        until = f", until {suppressed.expires}" if suppressed.expires else ""
        yield from wrap(
            f"{finding.code} {finding.name} {finding.subject}: {finding.message}", options.width, "  ", "    "
        )
        yield from wrap(f"{suppressed.reason} ({suppressed.source}{until})", options.width, "      ")
    yield ""


def _examined(report: Report, options: ReportOptions, style: Style) -> Iterator[str]:
    """What rules compared with what, where they say so: what a PASS rests on."""
    told = [outcome for outcome in report.outcomes if outcome.examined]
    if told:
        yield style.paint("Examined", "bold")
        for outcome in told:
            yield from wrap(f"{outcome.code}: {printable(outcome.examined)}", options.width, "  ", "    ")
        yield ""


def _coverage(report: Report, options: ReportOptions, style: Style) -> Iterator[str]:
    coverage = report.coverage
    reason = unknown_coverage(report)
    if reason:
        text = f"unknown: {reason}"
    elif coverage is None or coverage["status"] == "NOT_LOADED":
        return
    else:
        parts = [str(coverage["status"]).lower()]
        for what, counts in coverage["counts"].items():
            numbers = ", ".join(f"{value:,} {key.replace('_', ' ')}" for key, value in counts.items())
            parts += [f"{what}: {numbers}"] if numbers else []
        unread = coverage.get("unread_parts") or ()
        parts += [f"not read: {', '.join(unread)}"] if unread else []
        text = "; ".join(parts) + f" (by the {coverage['basis'].replace('-', ' ')})"
    first, *rest = labelled("Coverage", text, options.width, "", _COLUMN - 2)
    yield first.replace("Coverage", style.paint("Coverage", "bold"), 1)
    yield from rest
    yield ""


_TITLES = {
    Status.NOT_EVALUATED: "Not evaluated",
    Status.BLOCKED: "Blocked",
    Status.LEFT_OUT: "Left out",
    Status.NOTHING: "Not applicable",
}
_NOTHING = "there is nothing of the kind that they judge"


def _outcomes(report: Report, options: ReportOptions, style: Style) -> Iterator[str]:
    """
    What did not run, by reason. Verbose: every rule by its name under all that it lacks. Else the commonest reasons,
    each rule under the first thing that it lacks, consecutive codes as one run.
    """
    for status, title in _TITLES.items():
        items = [outcome for outcome in report.outcomes if _belongs(outcome, status)]
        if not items:
            continue
        yield style.paint(title, "bold")
        by_reason = _by_reason(items, whole=options.verbose)
        kept = by_reason if options.verbose or len(by_reason) <= MOST_REASONS + 1 else _commonest(by_reason)
        for reason, members in kept.items():
            shown = _named(members) if options.verbose else _runs(members)
            yield from wrap(f"{reason}: {shown}", options.width, "  ", "    ")
        if len(kept) < len(by_reason):
            rest = sum(len(members) for reason, members in by_reason.items() if reason not in kept)
            reasons = counted(len(by_reason) - len(kept), "other reason")
            yield style.paint(f"  ... and {counted(rest, 'rule')} for {reasons}: all with --verbose", "dim")
        yield ""


def _belongs(outcome: Outcome, status: Status) -> bool:
    return outcome.status is status or (status is Status.NOT_EVALUATED and outcome.partial)


def _by_reason(items: Sequence[Outcome], *, whole: bool) -> dict[str, list[Outcome]]:
    """The outcomes by reason in order of code. Not `whole`: of several sections that a rule lacks the first counts."""
    by_reason: dict[str, list[Outcome]] = {}
    for outcome in sorted(items, key=lambda outcome: outcome.code):
        if outcome.status is Status.NOTHING:
            by_reason.setdefault(_NOTHING, []).append(outcome)
            continue
        reason = outcome.reason if whole or len(outcome.lacks) < 2 else outcome.reason.partition("; ")[0]
        by_reason.setdefault(reason, []).append(outcome)
    return by_reason


def _commonest(by_reason: dict[str, list[Outcome]]) -> dict[str, list[Outcome]]:
    """The reasons of most rules, in the order that they had."""
    most = set(sorted(by_reason, key=lambda reason: -len(by_reason[reason]))[:MOST_REASONS])
    return {reason: members for reason, members in by_reason.items() if reason in most}


def _named(members: Sequence[Outcome]) -> str:
    return ", ".join(f"{member.code} {member.name}{' (in part)' if member.partial else ''}" for member in members)


def _runs(members: Sequence[Outcome]) -> str:
    """`D101-D103, D202`: codes that follow each other as one run, and of many runs how many rules the rest has."""
    runs: list[list[Outcome]] = []
    for member in members:
        if runs and not member.partial and not runs[-1][-1].partial and _follows(runs[-1][-1].code, member.code):
            runs[-1].append(member)
        else:
            runs.append([member])
    shown = runs if len(runs) <= MOST_RUNS + 1 else runs[:MOST_RUNS]
    texts = [text for run in shown for text in _run(run)]
    rest = len(members) - sum(len(run) for run in shown)
    return ", ".join(texts) + (f", +{rest} more" if rest else "")


def _run(run: Sequence[Outcome]) -> list[str]:
    if len(run) > 2:
        return [f"{run[0].code}-{run[-1].code}"]
    return [outcome.code + (" (in part)" if outcome.partial else "") for outcome in run]


def _follows(before: str, after: str) -> bool:
    stem, number = after.rstrip("0123456789"), after[len(after.rstrip("0123456789")) :]
    return bool(number) and before == f"{stem}{int(number) - 1:0{len(number)}d}"


def _timing(report: Report, style: Style) -> Iterator[str]:
    yield style.paint(f"Time {report.seconds:.3f} s", "bold")
    slowest = sorted(report.outcomes, key=lambda outcome: (-outcome.seconds, outcome.code))
    for outcome in slowest:
        if outcome.seconds:
            yield f"  {outcome.seconds:9.6f} s  {outcome.code} {outcome.name}"
    yield ""


def _blocked(report: Report, options: ReportOptions, style: Style) -> Iterator[str]:
    if not report.blocked_by:
        return
    yield style.paint("This run cannot be trusted", "bold", "red")
    for reason in report.blocked_by:
        yield from wrap(reason, options.width, "  ", "    ")
    yield ""
