"""
Reports: what a run found out, and the formats to write it in.

A reporter is a callable `(Report, TextIO, ReportOptions) -> None`. Packs add theirs by name through the hook
`shardlint_reporters`.
"""

from collections.abc import Callable
from typing import TextIO

from .concise import write_concise
from .json import report_schema, write_json
from .model import REPORT_VERSION, LintError, Report, SuppressedFinding, Verdict
from .options import ReportOptions
from .text import write_text

Reporter = Callable[[Report, TextIO, ReportOptions], None]

BUILTIN_REPORTERS: dict[str, Reporter] = {"text": write_text, "concise": write_concise, "json": write_json}

__all__ = [
    "BUILTIN_REPORTERS",
    "REPORT_VERSION",
    "LintError",
    "Report",
    "ReportOptions",
    "Reporter",
    "SuppressedFinding",
    "Verdict",
    "report_schema",
    "write_concise",
    "write_json",
    "write_text",
]
