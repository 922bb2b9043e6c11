"""
shardlint: a linter for the moment before a training or serving run starts.

The names here, those of `shardlint.facts`, `shardlint.names`, `shardlint.contract` and `shardlint.testing` are the
public API; packs need nothing else. Importing this package does not import torch.
"""

from ._version import __version__
from .facts import Facts, FrozenDict, Section
from .live import LiveTarget, Target
from .plugins.hookspecs import API_VERSION, PackInfo, hookimpl
from .rule import Cost, Finding, HeavyRule, NotEvaluated, Phase, Rule, RuleDefinitionError, Severity, SubjectKind

__all__ = [
    "API_VERSION",
    "Cost",
    "Facts",
    "Finding",
    "FrozenDict",
    "HeavyRule",
    "LiveTarget",
    "NotEvaluated",
    "PackInfo",
    "Phase",
    "Rule",
    "RuleDefinitionError",
    "Section",
    "Severity",
    "SubjectKind",
    "Target",
    "__version__",
    "hookimpl",
]
