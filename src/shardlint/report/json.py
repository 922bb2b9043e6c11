"""The report for programs: one JSON document, whose schema is shipped with this module."""

from __future__ import annotations

import re
from typing import Any, TextIO

import msgspec

from ..engine.runner import Outcome, Status
from ..facts import FrozenDict
from ..facts.codec import encode_hook
from ..rule import Finding, Phase, Severity, SubjectKind
from .model import Report, Verdict
from .options import ReportOptions
from .style import encodable
from .summary import Summary, summarise

_ACTIVE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""What acts on a terminal or hides in one though JSON allows it: C1 control characters, bidirectional marks."""


class JsonFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `ranks` is empty when it concerns every rank; `evidence` holds plain values, by rule."""

    code: str
    name: str
    phase: Phase
    severity: Severity
    subject: str
    kind: SubjectKind
    message: str
    evidence: FrozenDict
    owner: str | None
    why: str
    remediation: str
    related_config: tuple[str, ...]
    ranks: tuple[int, ...]
    key: str


class JsonSuppressed(msgspec.Struct, frozen=True, kw_only=True):
    """A suppressed finding, why it is, and where that is written."""

    finding: JsonFinding
    reason: str
    source: str
    expires: str | None


class JsonOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    What became of one rule. `lacks` are the sections that it needs and the facts do not have.

    `judged` counts the subjects that it judged, `unknown` those that it could not, `noun` is what one is called.
    `examined` says what was compared with what, where the rule says so.
    """

    code: str
    name: str
    phase: Phase
    status: Status
    findings: int
    reason: str
    lacks: tuple[str, ...]
    partial: bool
    explicit: bool
    pack: str
    judged: int
    unknown: int
    noun: str
    examined: str


class JsonTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of the whole run, and of every rule by its code. The only part that differs from run to run."""

    seconds: float
    rules: dict[str, float]


class JsonReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    The document.

    A reader should ignore keys that it does not know: keys may be added within one version. `exit_status` is that of
    the verdict, whatever `--exit-zero` made of it.
    """

    version: int
    tool: str
    target: str
    verdict: Verdict
    exit_status: int
    fail_level: Severity | None
    summary: Summary
    blocked_by: tuple[str, ...]
    metadata: FrozenDict
    findings: tuple[JsonFinding, ...]
    suppressed: tuple[JsonSuppressed, ...]
    outcomes: tuple[JsonOutcome, ...]
    coverage: FrozenDict | None
    timing: JsonTiming


def document(report: Report) -> JsonReport:
    """The JSON document of `report`, not yet encoded."""
    return JsonReport(
        version=report.version,
        tool=report.tool,
        target=report.target,
        verdict=report.verdict,
        exit_status=report.exit_status,
        fail_level=report.fail_level,
        summary=summarise(report),
        blocked_by=report.blocked_by,
        metadata=report.metadata,
        findings=tuple(_finding(finding) for finding in report.findings),
        suppressed=tuple(
            JsonSuppressed(
                finding=_finding(suppressed.finding),
                reason=suppressed.reason,
                source=suppressed.source,
                expires=suppressed.expires,
            )
            for suppressed in report.suppressed
        ),
        outcomes=tuple(_outcome(outcome) for outcome in report.outcomes),
        coverage=report.coverage,
        timing=JsonTiming(
            seconds=round(report.seconds, 6),
            rules={outcome.code: round(outcome.seconds, 6) for outcome in report.outcomes},
        ),
    )


def _finding(finding: Finding) -> JsonFinding:
    return JsonFinding(**{name: getattr(finding, name) for name in JsonFinding.__struct_fields__})


def _outcome(outcome: Outcome) -> JsonOutcome:
    values = {name: getattr(outcome, name) for name in JsonOutcome.__struct_fields__}
    return JsonOutcome(**values | {"lacks": tuple(section.value for section in outcome.lacks)})


def write_json(report: Report, stream: TextIO, options: ReportOptions) -> None:
    """Write `report` as indented JSON with every finding, suppressed ones included."""
    stream.write(encode(document(report)) + "\n")


def encode(value: Any) -> str:
    """Indented JSON of attrs classes, frozen dicts and plain values; lone surrogates are written as escapes."""
    try:
        data = msgspec.json.encode(value, enc_hook=encode_hook)
    except UnicodeEncodeError:
        data = msgspec.json.encode(encodable(msgspec.to_builtins(value, enc_hook=encode_hook)))
    text = msgspec.json.format(data, indent=2).decode()
    return _ACTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def report_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    schema = msgspec.json.schema(JsonReport, schema_hook=_schema_hook)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "shardlint report", **schema}


def _schema_hook(kind: type) -> dict[str, Any]:
    if kind is FrozenDict:
        return {"type": "object"}
    raise NotImplementedError(f"no schema for {kind.__name__}")
