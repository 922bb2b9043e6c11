"""The options of rules, checked against the options class of each rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.rule_options import RuleOptionsError
from ..engine.rule_options import rule_options as build
from ..engine.source import DEFAULT
from ..names import did_you_mean
from ..plugins.registry import RegisteredRule
from ..rule import Rule
from .files import problem_at
from .problems import ConfigError, ConfigProblem
from .settings import Settings


def rule_options(settings: Settings, rules: Sequence[RegisteredRule]) -> dict[str, Any]:
    """
    The options instance of every rule that `lint.options` configures, by code, for `Selection.to_run`.

    Raises `ConfigError` naming every unknown rule, every unknown option and every wrong value with its place.
    """
    by_text = {
        text: known_rule.rule_class
        for known_rule in rules
        for text in (known_rule.rule_class.code, known_rule.rule_class.name)
    }
    problems: list[ConfigProblem] = []
    options: dict[str, Any] = {}
    for text, data in settings.options.items():
        rule = by_text.get(text)
        if rule is None:
            message = f"expected the code or name of a loaded rule, got {text!r}{did_you_mean(text, by_text)}"
            problems.append(_problem(settings, text, "", message))
        elif rule.code in options:
            message = "expected the options of a rule once, got them by code and by name"
            problems.append(_problem(settings, text, "", message))
        else:
            options[rule.code] = _built(settings, text, rule, data, problems)
    if problems:
        raise ConfigError(problems)
    return options


def _built(
    settings: Settings, text: str, rule: type[Rule], data: Mapping[str, Any], problems: list[ConfigProblem]
) -> Any:
    """The options instance, None after noting a problem for each option that the rule refuses."""
    before = len(problems)
    for key, value in data.items():
        try:
            build(rule, {key: value})
        except RuleOptionsError as error:
            problems.append(_problem(settings, text, key, _told(rule, error)))
    if len(problems) > before:
        return None
    try:
        return build(rule, data)
    except RuleOptionsError as error:  # each is right, but not all together: one was given twice
        problems.append(_problem(settings, text, "", _told(rule, error)))
        return None


def _told(rule: type[Rule], error: RuleOptionsError) -> str:
    wanted = "" if error.text.startswith("expected") else f"expected the options of {rule.code} {rule.name}, got an "
    return wanted + error.text


def _problem(settings: Settings, rule: str, key: str, message: str) -> ConfigProblem:
    value = settings.values.get("lint", "options", rule, *([key] if key else []))
    path = f"lint.options.{rule}" + (f".{key}" if key else "")
    return problem_at(value.source if value else DEFAULT, path, message)
