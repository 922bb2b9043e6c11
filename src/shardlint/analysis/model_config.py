"""What a model's configuration says: whole numbers, its text part, its quantisation. Public; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from ..facts import EMPTY, FrozenDict, ModelFacts, NotEvaluated, PartConfig, known

LOADED_QUANTISATION = ("quantization_config",)
"""The key under which Transformers reads the quantisation of a checkpoint."""

DECLARED_QUANTISATION = (*LOADED_QUANTISATION, "compression_config")
"""Every key under which a checkpoint declares that it is quantised."""

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""The keys under which model families keep the number of routed experts."""

_TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config", "decoder")


def model_configurations(model: ModelFacts) -> tuple[PartConfig, ...]:
    """
    Every configuration that describes parameters of the model: one of the whole, or those of its parts.

    The FQN of each says which parameters it describes: those below it. Empty for a model without any.
    """
    if model.config is not None or model.config_unreadable:
        whole = PartConfig(fqn=model.config_fqn, config=model.config or EMPTY, unreadable=model.config_unreadable)
        return (whole, *model.part_configs)
    return model.part_configs


def known_settings(part: PartConfig) -> FrozenDict:
    """The settings of a configuration. Raises `NotEvaluated` when it could not be read."""
    if part.unreadable:
        raise NotEvaluated(f"the configuration of {part.fqn or 'the model'} cannot be read: {part.unreadable}")
    return part.config


def quantisation_settings(
    config: Mapping[str, Any] | None, keys: Sequence[str] = DECLARED_QUANTISATION
) -> Mapping[str, Any] | None:
    """The quantisation settings of a configuration, also those of its `text_config`; None when it has none."""
    for holder in _with_text(config):
        for key in keys:
            settings = holder.get(key)
            if isinstance(settings, Mapping) and settings:
                return settings
    return None


def is_quantised(config: Mapping[str, Any] | None) -> bool:
    """Whether the configuration, or its `text_config`, declares a quantisation, readable or not."""
    return any(holder.get(key) for holder in _with_text(config) for key in DECLARED_QUANTISATION)


def config_number(config: Mapping[str, Any] | None, *names: str) -> int | None:
    """The first positive whole number under these names, also below `text_config`; None when there is none."""
    numbers = (own_number(holder, *names) for holder in _with_text(config))
    return next((number for number in numbers if number is not None), None)


def is_whole_number(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer, which a bool is not here. Raises `UnknownFact` when it is not known."""
    value = known(value)
    return isinstance(value, int) and not isinstance(value, bool)


def whole_numbers(config: Mapping[str, Any], part: str) -> set[int]:
    """All positive whole numbers whose keys contain `part`."""
    return {number for key in config if part in key and (number := own_number(config, key)) is not None}


def own_number(config: Mapping[str, Any], *names: str) -> int | None:
    """The first positive whole number under these names, in this part of the configuration alone."""
    for name in names:
        value = config.get(name)
        if is_whole_number(value) and value > 0:
            return value
    return None


def all_integers(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Every whole number with its dotted key, those of the parts included."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from all_integers(value, f"{prefix}{key}.")
        elif is_whole_number(value):
            yield prefix + key, value


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The configuration of the part that holds the tokens; None when there are parts and none is known to be it."""
    parts = [key for key, value in config.items() if isinstance(value, Mapping) and "model_type" in value]
    if not parts:
        return config
    return next((config[key] for key in _TEXT_PARTS if key in parts), None) if len(parts) == 1 else None


def architectures_of(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names under `architectures`; empty when it is absent or no sequence of names."""
    names = (config or {}).get("architectures")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, (tuple, list)) else ()


def model_type_of(config: Mapping[str, Any] | None) -> str:
    """The text under `model_type`, empty when there is none."""
    value = (config or {}).get("model_type")
    return value if isinstance(value, str) else ""


def _with_text(config: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    for holder in (config, config.get("text_config") if config else None):
        if isinstance(holder, Mapping):
            yield holder
