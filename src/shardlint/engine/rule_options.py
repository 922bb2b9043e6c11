"""Options of rules: from what users write to the rule's own options class, with errors that name the option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from ..facts.codec import decode_hook
from ..facts.frozen import thaw
from ..names import did_you_mean
from ..rule import Rule


class RuleOptionsError(ValueError):
    """An option that a rule does not take. `option` is its name as users write it, empty when it is about all."""

    def __init__(self, rule: type[Rule], option: str, text: str) -> None:
        self.rule_code = rule.code
        self.option = option
        self.text = text
        where = f"option {option!r} of {rule.code} {rule.name}" if option else f"the options of {rule.code} {rule.name}"
        super().__init__(f"{where}: {text}")


def rule_options(rule: type[Rule], given: Mapping[str, Any]) -> Any:
    """
    Build the options of `rule` from `given`, whose keys are written with hyphens or underscores.

    Raises `RuleOptionsError` for an unknown option or a value that does not fit.
    """
    known = {field.name: field for field in attrs.fields(rule.options_type)}
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = str(key).replace("-", "_")
        if name not in known:
            written = [option.replace("_", "-") for option in known]
            valid = f"; its options are {', '.join(written)}" if written else "; it has no options"
            raise RuleOptionsError(rule, str(key), f"unknown option{did_you_mean(str(key), written)}{valid}")
        if name in values:
            raise RuleOptionsError(rule, str(key), "given twice")
        values[name] = thaw(value)
    try:
        return msgspec.convert(values, rule.options_type, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        option, text = _explained(str(error))
        raise RuleOptionsError(rule, option, text) from error


def _explained(text: str) -> tuple[str, str]:
    """Split msgspec's "Expected `int`, got `str` - at `$.max_share[0]`" into option path and sentence."""
    what, _, path = text.partition(" - at `$.")
    head, bracket, rest = path.rstrip("`").partition("[")
    what = what.replace("`", "")
    return head.replace("_", "-") + bracket + rest, what[:1].lower() + what[1:]
