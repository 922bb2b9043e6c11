"""What settings do to a verdict: which rules they switch off, lower or suppress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..plugins.registry import RegisteredRule
from .selection import Layer, Selection, SelectionError, select_rules
from .suppressions import Suppression


def effect_of(
    rules: Sequence[RegisteredRule], layers: Sequence[Layer], suppressions: Iterable[Suppression]
) -> dict[str, Any]:
    """
    The codes of the rules that `layers` switch off and lower compared with the defaults, and that are suppressed.

    Only what files say belongs here: what the command line says, its reader has seen.
    """
    codes = {rule.rule_class.name: rule.rule_class.code for rule in rules}
    named = {codes.get(name, name) for entry in suppressions for name in entry.rules}
    off, lowered = _changed(_selection(rules, layers), rules)
    return {"switched_off": off, "lowered": lowered, "suppressed": tuple(sorted(named))}


def _selection(rules: Sequence[RegisteredRule], layers: Sequence[Layer]) -> Selection | None:
    try:
        return select_rules(rules, layers)
    except SelectionError:  # nothing is left without what the command line adds
        return None


def _changed(selection: Selection | None, rules: Sequence[RegisteredRule]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if selection is None:
        return tuple(rule.rule_class.code for rule in rules), ()
    off = [decision.rule.rule_class.code for decision in selection.decisions if not decision.enabled]
    off += [code for code, severity in selection.engine.items() if severity is None]
    lowered = [
        decision.rule.rule_class.code
        for decision in selection.decisions
        if decision.enabled and decision.severity is not None and decision.severity < decision.rule.rule_class.severity
    ]
    return tuple(off), tuple(lowered)
