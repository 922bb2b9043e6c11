"""
Reports: what a run found out, and the formats to write it in.

A reporter is a callable `(Report, TextIO, ReportOptions) -> None`. Packs add theirs by name through the hook
`shardlint_reporters`.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from ..engine.suppressions import SuppressedFinding
from .model import REPORT_VERSION, LintError, Report, Verdict
from .options import ReportOptions

if TYPE_CHECKING:
    from .concise import write_concise
    from .json import report_schema, write_json
    from .text import write_text

Reporter = Callable[[Report, TextIO, ReportOptions], None]


def _late(name: str) -> Reporter:
    """The built-in reporter `name`, whose module is imported when it writes."""

    def write(report: Report, stream: TextIO, options: ReportOptions) -> None:
        reporter: Reporter = getattr(importlib.import_module(f".{name}", __name__), f"write_{name}")
        reporter(report, stream, options)

    return write


BUILTIN_REPORTERS: dict[str, Reporter] = {name: _late(name) for name in ("text", "concise", "json")}
_MODULE_OF = {"write_text": "text", "write_concise": "concise", "write_json": "json", "report_schema": "json"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


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
