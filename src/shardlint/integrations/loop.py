"""A plain training loop: lint once, show the report on one rank, stop on every rank when it is not clean."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from ..report.model import Report


def check(model: Any, *, stream: TextIO | None = None, raises: bool = True, **arguments: Any) -> Report:
    """
    Lint `model` before the first step; in a distributed job every rank calls it.

    `arguments` are those of `shardlint.lint`. The report goes to `stream` (standard error by default) on rank 0.
    Raises `LintError` on every rank when there are errors or the run cannot be trusted, unless `raises` is false.
    """
    from ..api import lint

    report = lint(model, **arguments)
    show(report, sys.stderr if stream is None else stream)
    if raises:
        report.raise_for_errors()
    return report


def show(report: Report, stream: TextIO) -> None:
    """Write the report as text, on rank 0 of a job or in a process that is alone."""
    from ..report import ReportOptions, write_text

    if rank_here() == 0:
        write_text(report, stream, ReportOptions())


def rank_here() -> int:
    """The rank of this process in its job, 0 when it is alone."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())
