"""A helper for test suites: a model must lint clean, else the test fails with the report as its message."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from ..facts import Facts
from ..names import counted
from ..rule import Severity


def assert_clean(
    target: Any,
    *,
    level: str = "warning",
    evaluated: Iterable[str] = (),
    **arguments: Any,
) -> None:
    """
    Assert that linting `target` (a model, a `Target`, or facts) finds nothing of severity `level` or above.

    `evaluated` are codes or names of rules that must have been evaluated: a rule that lacked a fact proves nothing.
    `arguments` are those of `shardlint.lint`. Raises `AssertionError` with the report as text, `ValueError` for an
    unknown level.
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    from ..api import lint, lint_facts

    evaluated = (evaluated,) if isinstance(evaluated, str) else tuple(evaluated)
    threshold: Severity = Severity.from_user(level)
    report = lint_facts(target, **arguments) if isinstance(target, Facts) else lint(target, **arguments)
    lacking = [
        f"{outcome.code} {outcome.name}: {outcome.reason or 'not selected'}"
        for outcome in report.outcomes
        if {outcome.code, outcome.name} & set(evaluated) and outcome.status.value not in ("clean", "found")
    ]
    known = {name for outcome in report.outcomes for name in (outcome.code, outcome.name)}
    lacking += [f"{name}: no such rule ran" for name in evaluated if name not in known]
    found = [finding for finding in report.findings if threshold <= finding.severity]
    if found or lacking or report.blocked_by:
        from ..report import ReportOptions, write_text

        stream = io.StringIO()
        write_text(report, stream, ReportOptions(verbosity=0))
        told = "".join(f"\nnot evaluated: {reason}" for reason in lacking)
        wrong = [counted(len(found), "finding")] if found or not lacking else []
        wrong += [f"{counted(len(lacking), 'rule')} not evaluated"] if lacking else []
        raise AssertionError(f"expected a clean lint, found {' and '.join(wrong)}\n{stream.getvalue()}{told}")
