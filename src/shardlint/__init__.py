"""
shardlint: a linter for the moment before a training or serving run starts.

The names here, those of `shardlint.facts`, `shardlint.names`, `shardlint.contract` and `shardlint.testing` are the
public API; packs need nothing else. Importing this package does not import torch.
"""

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .facts import Facts, FrozenDict, Section
from .live import LiveTarget, Target
from .plugins.hookspecs import API_VERSION, PackInfo, hookimpl
from .rule import Cost, Finding, HeavyRule, NotEvaluated, Phase, Rule, RuleDefinitionError, Severity, SubjectKind

if TYPE_CHECKING:
    from .api import lint, lint_facts, snapshot
    from .report.model import LintError, Report, Verdict

_LATE = {
    "lint": "api",
    "lint_facts": "api",
    "snapshot": "api",
    "LintError": "report.model",
    "Report": "report.model",
    "Verdict": "report.model",
}

__all__ = [
    "API_VERSION",
    "Cost",
    "Facts",
    "Finding",
    "FrozenDict",
    "HeavyRule",
    "LintError",
    "LiveTarget",
    "NotEvaluated",
    "PackInfo",
    "Phase",
    "Report",
    "Rule",
    "RuleDefinitionError",
    "Section",
    "Severity",
    "SubjectKind",
    "Target",
    "Verdict",
    "__version__",
    "hookimpl",
    "lint",
    "lint_facts",
    "snapshot",
]


def __getattr__(name: str) -> Any:
    """Import the engine when it is asked for: packs import this package and need none of it."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
