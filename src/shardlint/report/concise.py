"""One line a finding, for grep and for narrow logs."""

from __future__ import annotations

from typing import TextIO

from ..names import printable, ranges
from ..rule import Finding
from .model import Report
from .options import ReportOptions
from .settings_used import settings_lines
from .style import Style
from .summary import last_line


def write_concise(report: Report, stream: TextIO, options: ReportOptions) -> None:
    """Write the settings, `severity CODE name subject: message` for every finding, then the line that sums up."""
    style = Style(options.color)
    if not options.quiet:
        for line in settings_lines(report.metadata.get("settings") or {}):
            stream.write(style.paint(printable(line), "dim") + "\n")
        for finding in report.findings:
            stream.write(finding_line(finding, style) + "\n")
        if options.show_suppressed:
            for hidden in report.suppressed:
                reason = printable(f" [suppressed: {hidden.reason}]")
                stream.write(style.paint(finding_line(hidden.finding) + reason, "dim") + "\n")
        for why in report.blocked_by:
            stream.write(style.paint("untrusted", "bold", "red") + f" {printable(why)}\n")
    stream.write(last_line(report, style, options))


def finding_line(finding: Finding, style: Style | None = None) -> str:
    """The line of one finding; names in it are made safe to show."""
    style = style or Style()
    rule = style.paint(f"{finding.code} {finding.name}", "bold")
    ranks = f" (ranks: {ranges(finding.ranks)})" if finding.ranks else ""
    return (
        f"{style.severity(finding.severity)} {rule} {printable(finding.subject)}: {printable(finding.message)}{ranks}"
    )
