"""The options of rules, checked against the options class of each rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..names import did_you_mean
from ..plugins.registry import RegisteredRule
from ..rule import Rule
from ..rule_options import RuleOptionsError
from ..rule_options import rule_options as build
from ..source import DEFAULT
from .files import problem_at
from .problems import ConfigError, ConfigProblem
from .settings import Settings


def rule_options(settings: Settings, rules: Sequence[RegisteredRule]) -> dict[str, Mapping[str, Any]]:
    """
    The options of every rule that `lint.options` configures, by code, for `Selection.to_run`.

    Raises `ConfigError` naming every unknown rule, every unknown option and every wrong value with its place.
    """
    by_text = {text: item.rule_class for item in rules for text in (item.rule_class.code, item.rule_class.name)}
    problems: list[ConfigProblem] = []
    found: dict[str, Mapping[str, Any]] = {}
    for text, data in settings.options.items():
        rule = by_text.get(text)
        if rule is None:
            message = f"expected the code or name of a loaded rule, got {text!r}{did_you_mean(text, by_text)}"
            problems.append(_problem(settings, text, "", message))
        elif rule.code in found:
            message = "expected the options of a rule once, got them by code and by name"
            problems.append(_problem(settings, text, "", message))
        else:
            found[rule.code] = data
            problems.extend(_refused(settings, text, rule, data))
    if problems:
        raise ConfigError(problems)
    return found


def _refused(settings: Settings, text: str, rule: type[Rule], data: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    """A problem for each option that the rule refuses; alone first, then all together (one given twice)."""
    alone = [(key, {key: value}) for key, value in data.items()]
    refused = False
    for key, given in [*alone, ("", data)]:
        if refused and not key:
            return
        try:
            build(rule, given)
        except RuleOptionsError as error:
            refused = True
            yield _problem(settings, text, key, _told(rule, error))


def _told(rule: type[Rule], error: RuleOptionsError) -> str:
    wanted = "" if error.text.startswith("expected") else f"expected the options of {rule.code} {rule.name}, got an "
    return wanted + error.text


def _problem(settings: Settings, rule: str, key: str, message: str) -> ConfigProblem:
    found = settings.values.get("lint", "options", rule, *([key] if key else []))
    path = f"lint.options.{rule}" + (f".{key}" if key else "")
    return problem_at(found.source if found else DEFAULT, path, message)
