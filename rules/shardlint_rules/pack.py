"""The entry point of the built-in pack: every rule module below this package, found by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

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
    for phase in sorted(folder.name for folder in resources.files("shardlint_rules").iterdir() if _is_phase(folder)):
        for name in _modules_in(f"shardlint_rules.{phase}"):
            yield from _rules_of(f"shardlint_rules.{phase}.{name}")


def _is_phase(entry: Traversable) -> bool:
    return not entry.name.startswith(("_", ".")) and entry.is_dir()


def _modules_in(package: str) -> list[str]:
    """
    The public modules of a package. Raises `OSError` when its folder cannot be listed.

    `pkgutil.iter_modules` would take such a folder for an empty one, and its rules would be missing silently.
    """
    names = {inspect.getmodulename(entry.name) for entry in resources.files(package).iterdir()}
    return sorted(name for name in names if name and not name.startswith("_"))


def _rules_of(module_name: str) -> Iterator[type[Rule]]:
    module = importlib.import_module(module_name)
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module_name:
            yield value
