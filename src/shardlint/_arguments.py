"""What the functions of the Python API refuse at once: arguments that are something else than they expect."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from .facts import Facts
from .target import Target


def check_target(target: Target) -> None:
    """
    Raise `TypeError` for a part of `target` that cannot be what it is taken for.

    Optimizers are of many classes, so only what certainly is none is refused; a model is judged where torch is known.
    """
    from .contract import DataPipeline

    if isinstance(target.model, Facts):
        raise TypeError("expected a model or a shardlint.Target, got Facts: facts are linted by shardlint.lint_facts")
    checkpoint, optimizer, data = target.checkpoint, target.optimizer, target.data
    if checkpoint is not None and not isinstance(checkpoint, (str, os.PathLike)):
        raise _wrong("checkpoint", "the path of a folder or file", checkpoint)
    if isinstance(optimizer, type):
        raise TypeError(f"optimizer: expected an optimizer, got the class {optimizer.__name__}; pass an instance")
    if isinstance(optimizer, (str, bytes, int, float)):
        raise _wrong("optimizer", "an optimizer, or several in a list or mapping", optimizer)
    if data is not None and not isinstance(data, DataPipeline):
        raise _wrong("data", "a shardlint.contract.DataPipeline", data)


def check_facts(facts: object) -> None:
    """Raise `TypeError` for anything but facts."""
    if not isinstance(facts, Facts):
        hint = "; a model is linted by shardlint.lint" if hasattr(facts, "named_parameters") else ""
        raise TypeError(f"facts: expected shardlint.Facts, got {type(facts).__name__}{hint}")


def check_config(config: object) -> None:
    """Raise `TypeError` for what is neither settings nor a path, False or None."""
    from .config import Settings

    if not (config is None or config is False or isinstance(config, (str, os.PathLike, Settings))):
        hint = "; settings are written in a file, rules are chosen by `select` and `ignore`"
        raise TypeError(
            f"config: expected the path of a file, settings, False for none or None for the nearest file, "
            f"got {type(config).__name__}{hint}"
        )


def texts(name: str, value: object) -> tuple[str, ...]:
    """The selectors in `value`: a single string is one (or a comma list), not its letters. Raises `TypeError`."""
    if isinstance(value, str):
        return (value,)
    found = tuple(value) if isinstance(value, Iterable) else (value,)
    for item in found:
        if not isinstance(item, str):
            raise _wrong(name, "selectors such as 'D4' or 'tie-not-real'", item)
    return found


def levels(value: object) -> list[str]:
    """`RULE=LEVEL` for every item of `severity`. Raises `TypeError` for what is not a mapping of strings."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise _wrong("severity", "a mapping such as {'D401': 'warning'}", value)
    return [f"{rule}={level}" for rule, level in value.items()]


def check_timeout(value: object) -> None:
    """Raise `TypeError` for what is not a number, `ValueError` for a negative one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong("rank_timeout", "seconds as a number", value)
    if not value >= 0:
        raise ValueError(f"rank_timeout: expected 0 or more seconds, got {value}")


def _wrong(name: str, wanted: str, got: Any) -> TypeError:
    return TypeError(f"{name}: expected {wanted}, got {got!r} of type {type(got).__name__}")
