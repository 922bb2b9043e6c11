"""What rules read from a model's configuration: whole numbers, and the part that holds the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""The keys under which model families keep the number of routed experts."""
_TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config", "decoder")


def is_whole_number(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer, which a bool is not here."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole_number(config: Mapping[str, Any], *names: str) -> int | None:
    """The first positive whole number under these keys; None when there is none."""
    for name in names:
        number = config.get(name)
        if is_whole_number(number) and number > 0:
            return number
    return None


def whole_numbers(config: Mapping[str, Any], part: str) -> set[int]:
    """All positive whole numbers whose keys contain `part`."""
    return {number for key in config if part in key and (number := whole_number(config, key)) is not None}


def nested_number(config: Mapping[str, Any] | None, *names: str) -> int | None:
    """The first positive whole number under these keys, at the top or in the part that holds the tokens."""
    top = config or {}
    for level in (top, *(top.get(part) for part in _TEXT_PARTS)):
        if isinstance(level, Mapping) and (number := whole_number(level, *names)) is not None:
            return number
    return None


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The configuration of the part that holds the tokens; None when there are parts and none is known to be it."""
    parts = [key for key, value in config.items() if isinstance(value, Mapping) and "model_type" in value]
    if not parts:
        return config
    return next((config[key] for key in _TEXT_PARTS if key in parts), None) if len(parts) == 1 else None
