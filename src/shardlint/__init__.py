"""
shardlint: a linter for the moment before a training or serving run starts.

The public API is what these modules name; packs need nothing else:

- `shardlint`
- `shardlint.analysis.*`
- `shardlint.boxes`
- `shardlint.collect.sharding`
- `shardlint.contract`
- `shardlint.facts`
- `shardlint.integrations.loop`
- `shardlint.integrations.pytest`
- `shardlint.integrations.transformers`
- `shardlint.names`
- `shardlint.report`
- `shardlint.testing`
- `shardlint.tracing`
- `shardlint.weights`

Importing this package does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .api import lint, lint_facts, snapshot
    from .collect.write_watch import WriteReport, WriteWatch, watch_writes
    from .facts import Facts, FrozenDict, Section, Unknown, UnknownFact
    from .plugins.hookspecs import API_VERSION, PackInfo, hookimpl
    from .report.model import LintError, Report, Verdict
    from .rule import (
        WHOLE,
        Cost,
        Examined,
        Finding,
        HeavyRule,
        NotEvaluated,
        Phase,
        Rule,
        RuleDefinitionError,
        Severity,
        SubjectKind,
        Unfinished,
    )
    from .target import LiveTarget, Target
    from .tracing import trace

_NAMES_OF = {
    "api": ("lint", "lint_facts", "snapshot"),
    "collect.write_watch": ("WriteReport", "WriteWatch", "watch_writes"),
    "facts": ("Facts", "FrozenDict", "Section", "Unknown", "UnknownFact"),
    "target": ("LiveTarget", "Target"),
    "plugins.hookspecs": ("API_VERSION", "PackInfo", "hookimpl"),
    "report.model": ("LintError", "Report", "Verdict"),
    "rule": (
        "WHOLE",
        "Cost",
        "Examined",
        "Finding",
        "HeavyRule",
        "NotEvaluated",
        "Phase",
        "Rule",
        "RuleDefinitionError",
        "Severity",
        "SubjectKind",
        "Unfinished",
    ),
    "tracing": ("trace",),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}
PUBLIC_MODULES = (
    "shardlint",
    "shardlint.analysis.*",
    "shardlint.boxes",
    "shardlint.collect.sharding",
    "shardlint.contract",
    "shardlint.facts",
    "shardlint.integrations.loop",
    "shardlint.integrations.pytest",
    "shardlint.integrations.transformers",
    "shardlint.names",
    "shardlint.report",
    "shardlint.testing",
    "shardlint.tracing",
    "shardlint.weights",
)
"""The modules that packs may import; of one that ends in `.*` every module. The built-in rules are held to it."""
_SUBMODULES = tuple(module.split(".")[1] for module in PUBLIC_MODULES if module.count(".") == 1)

__all__ = [
    "API_VERSION",
    "PUBLIC_MODULES",
    "WHOLE",
    "Cost",
    "Examined",
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
    "Unfinished",
    "Unknown",
    "UnknownFact",
    "Verdict",
    "WriteReport",
    "WriteWatch",
    "__version__",
    "hookimpl",
    "lint",
    "lint_facts",
    "snapshot",
    "trace",
    "watch_writes",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for, so that the command starts at once."""
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
