"""An output format: one line with the verdict and the number of findings of each code."""

from __future__ import annotations

from collections import Counter
from typing import Any, TextIO


def write_tally(report: Any, stream: TextIO, options: Any) -> None:
    """Write `PASS` or, say, `FAIL ACM001=3 D401=1`."""
    counts = Counter(finding.code for finding in report.findings)
    parts = [report.verdict.value, *(f"{code}={count}" for code, count in sorted(counts.items()))]
    stream.write(" ".join(parts) + "\n")
