"""The options of rules: from plain data to the options class of each rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from attrs import fields

from ..facts import thaw
from ..names import closest
from ..selectors import RegisteredRule
from ..source import DEFAULT
from .files import problem_at
from .problems import ConfigError, ConfigProblem
from .settings import Settings


def rule_options(settings: Settings, rules: Sequence[RegisteredRule]) -> dict[str, Any]:
    """
    The options instance of every rule that `lint.options` configures, by code.

    Keys are written kebab-case. Raises `ConfigError` naming every unknown rule, unknown option and wrong value.
    """
    by_text = {text: item for item in rules for text in (item.rule_class.code, item.rule_class.name)}
    problems: list[ConfigProblem] = []
    made: dict[str, Any] = {}
    for text, data in settings.options.items():
        item = by_text.get(text)
        if item is None:
            message = f"expected the code or name of a loaded rule, got {text!r}{_hint(text, by_text)}"
            problems.append(_problem(settings, text, "", message))
        elif item.rule_class.code in made:
            message = "expected the options of a rule once, got them by code and by name"
            problems.append(_problem(settings, text, "", message))
        else:
            made[item.rule_class.code] = _made(settings, text, item.rule_class.options_type, data, problems)
    if problems:
        raise ConfigError(problems)
    return made


def _made(settings: Settings, rule: str, cls: type, data: Mapping[str, Any], problems: list[ConfigProblem]) -> Any:
    known = {item.name.replace("_", "-"): item for item in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in known:
            hint = _hint(key, known) or f" (known options: {', '.join(known) or 'none'})"
            problems.append(_problem(settings, rule, key, f"expected an option of the rule, got {key!r}{hint}"))
            continue
        values[known[key].name] = thaw(value)
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError as error:
        text = str(error)
        key = next((key for key, item in known.items() if f"$.{item.name}" in text), "")
        problems.append(_problem(settings, rule, key, f"expected another value: {text}"))
        return None


def _hint(text: str, known: Mapping[str, Any]) -> str:
    near = closest(text, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _problem(settings: Settings, rule: str, key: str, message: str) -> ConfigProblem:
    found = settings.values.get("lint", "options", rule, *([key] if key else []))
    path = f"lint.options.{rule}" + (f".{key}" if key else "")
    return problem_at(found.source if found else DEFAULT, path, message)
