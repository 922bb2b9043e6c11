"""The entry point of the built-in pack: every rule module below this package, found by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from shardlint import API_VERSION, PackInfo, Rule, hookimpl


@hookimpl
def shardlint_pack() -> PackInfo:
    """Say who the pack is; its codes begin with the phase, which only the built-in pack may use."""
    return PackInfo(name="shardlint", prefix="", api=API_VERSION)


@hookimpl
def shardlint_rules() -> tuple[type[Rule], ...]:
    """Return every rule class, ordered by code."""
    return tuple(sorted(_rule_classes(), key=lambda rule: (rule.phase, rule.code)))


def _rule_classes() -> Iterator[type[Rule]]:
    package = importlib.import_module("shardlint_rules")
    for phase in pkgutil.iter_modules(package.__path__):
        if not phase.ispkg:
            continue
        folder = importlib.import_module(f"shardlint_rules.{phase.name}")
        for found in pkgutil.iter_modules(folder.__path__):
            if not found.name.startswith("_"):
                yield from _rules_of(f"shardlint_rules.{phase.name}.{found.name}")


def _rules_of(module_name: str) -> Iterator[type[Rule]]:
    module = importlib.import_module(module_name)
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module_name:
            yield value
