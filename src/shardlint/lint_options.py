"""How `lint` judges, and what the Python API refuses at once: arguments of another kind than expected."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attrs import Attribute, field, frozen

from .facts import Facts
from .ranks.job import DEFAULT_TIMEOUT
from .target import wrong_argument

if TYPE_CHECKING:
    from .config import Settings
    from .engine.selection import Layer


def _check_timeout(_: object, __: Attribute[float], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_argument("rank_timeout", "seconds as a number", value)
    if not value >= 0:
        raise ValueError(f"rank_timeout: expected 0 or more seconds, got {value}")


@frozen(kw_only=True)
class LintOptions:
    """
    The arguments of `lint` that say how to judge, by the same names.

    Raises `TypeError` for a `rank_timeout` that is no number, `ValueError` for a negative one.
    """

    config: Settings | str | Path | Literal[False] | None = None
    select: Iterable[str] = ()
    extend_select: Iterable[str] = ()
    ignore: Iterable[str] = ()
    severity: Mapping[str, str] | None = None
    heavy: bool = False
    rank_timeout: float = field(default=DEFAULT_TIMEOUT, validator=_check_timeout)

    @property
    def layer(self) -> Layer:
        """
        The choice of rules, which comes above those of the settings.

        Raises `TypeError` for selectors of another kind and `SelectionError` for those that name nothing.
        """
        from .engine.selection import flag_layer

        return flag_layer(
            _texts("select", self.select),
            _texts("extend_select", self.extend_select),
            _texts("ignore", self.ignore),
            _levels(self.severity),
            flag="{}",
        )


def check_facts(facts: object) -> None:
    """Raise `TypeError` for what is no facts."""
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


def _texts(name: str, value: object) -> tuple[str, ...]:
    """The selectors in `value`: a single string is one (or a comma list), not its letters. Raises `TypeError`."""
    if isinstance(value, str):
        return (value,)
    found = tuple(value) if isinstance(value, Iterable) else (value,)
    for item in found:
        if not isinstance(item, str):
            raise wrong_argument(name, "selectors such as 'D4' or 'tie-not-real'", item)
    return found


def _levels(value: object) -> list[str]:
    """`RULE=LEVEL` for every item of `severity`. Raises `TypeError` for what is no mapping of strings."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise wrong_argument("severity", "a mapping such as {'D401': 'warning'}", value)
    return [f"{rule}={level}" for rule, level in value.items()]
