"""
The weight conversions that a load recorded on its model, and running one stage of them.

Transformers keeps those that took part in `model._weight_conversions`. A trainer that converts twice (the checkpoint
to the base model, then the base model's tensors to those of the modules that replace its own) records both stages:
in one attribute (`record_conversions`), or in two, as HyperParallel's loader does. A record in stages counts before
the list, in which both stages stand one after the other.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from ..introspect.attributes import own
from ..names import first_line
from .loader import PlanUnknownError
from .releases import converted, scope_of

STAGES = "_weight_conversion_stages"
LIST = "_weight_conversions"
_NAMES = ("base", "replacement")
_HYPERPARALLEL = {name: f"_hp_used_{name}_weight_conversions" for name in _NAMES}


@frozen(kw_only=True)
class Stages:
    """Two recorded stages: loading runs `base` and then `replacement`, saving the reverse of them the other way."""

    base: tuple[Any, ...]
    replacement: tuple[Any, ...]


def record_conversions(model: Any, *, base: Iterable[Any], replacement: Iterable[Any]) -> None:
    """
    Record on `model` the weight conversions of a load in two stages, for the rules that follow the load.

    `base` leads from the checkpoint to the base model, `replacement` from there to the modules that replaced some of
    its own; either may be empty. They are Transformers' `WeightRenaming` and `WeightConverter` or objects like them.
    Raises `TypeError` for anything else.
    """
    stages = {"base": list(base), "replacement": list(replacement)}
    for name, transforms in stages.items():
        for transform in transforms:
            if not callable(getattr(transform, "rename_source_key", None)):
                raise TypeError(f"{name}: expected weight conversions with rename_source_key(), got {transform!r}")
    setattr(model, STAGES, stages)


def recorded_stages(model: Any) -> Stages | None:
    """The two stages, as fresh copies; None when there are none. Raises `PlanUnknownError` for half a record."""
    found = _record(model)
    if found is None:
        return None
    given: dict[str, Any] = {name: found.get(name) for name in _NAMES} if isinstance(found, Mapping) else {}
    wrong = [name for name in _NAMES if not isinstance(given.get(name), (list, tuple))]
    if wrong:
        raise PlanUnknownError(
            f"{STAGES} of the model has no list of conversions for the stage {' and '.join(wrong)}: record both "
            "stages (shardlint.weights.record_conversions), the one without conversions as an empty list"
        )
    return Stages(base=_copies(given["base"]), replacement=_copies(given["replacement"]))


def _record(model: Any) -> Any:
    """What the model carries about two stages; None when nothing, or one stage of two attributes alone."""
    found = own(model, STAGES)
    if found is not None:
        return found
    used = {name: own(model, attribute) for name, attribute in _HYPERPARALLEL.items()}
    return used if all(isinstance(stage, (list, tuple)) for stage in used.values()) else None


def recorded_list(model: Any) -> tuple[Any, ...]:
    """The conversions that Transformers recorded, as fresh copies; none when an adapter's load overwrote them."""
    found = own(model, LIST)
    if not isinstance(found, (list, tuple)) or hasattr(model, "peft_config"):
        return ()
    return _copies(found)


def all_recorded(model: Any) -> tuple[Any, ...]:
    """Every recorded conversion as it stands on the model, the stages in the order of loading."""
    found = _record(model)
    lists = [found.get(name) for name in _NAMES] if isinstance(found, Mapping) else [own(model, LIST)]
    return tuple(item for recorded in lists if isinstance(recorded, (list, tuple)) for item in recorded)


def _copies(transforms: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(pristine(transform) for transform in transforms)


def pristine(transform: Any) -> Any:
    """Copy a conversion as if it had seen no tensor, sharing what its operations hold (a quantiser, a model)."""
    found = copy.copy(transform)
    for name in ("_original_source_patterns", "_original_target_patterns"):  # reversing rewrites them in place
        if hasattr(found, name):
            setattr(found, name, list(getattr(found, name)))
    if hasattr(found, "operations"):
        found.operations = [copy.copy(operation) for operation in found.operations]
    fresh = {
        "collected_tensors": defaultdict(list),
        "layer_targets": defaultdict(set),
        "_was_used": False,
        "_active": None,
    }
    for name, value in fresh.items():
        if hasattr(found, name):
            setattr(found, name, value)
    return found


def signature(transform: Any) -> tuple[Any, ...]:
    """What tells two conversions apart: kind, patterns, scope, and the operations with their settings."""
    operations = tuple(
        (type(item).__name__, *sorted(f"{key}={value!r}" for key, value in vars(item).items() if key != "hf_quantizer"))
        for item in getattr(transform, "operations", ())
    )
    patterns = (tuple(transform.source_patterns), tuple(transform.target_patterns))
    return (type(transform).__name__, *patterns, scope_of(transform), operations)


@frozen(kw_only=True)
class Derived:
    """A tensor between two stages, and the stored keys that it was made of."""

    tensor: Any
    keys: tuple[str, ...]
    operations: tuple[str, ...] = ()


def run_stage(transforms: Sequence[Any], tensors: Mapping[str, Any], model: Any) -> dict[str, Derived]:
    """
    Run one stage over tensors by key, as the loader does: all renamings, then at most one converter for each key.

    The tensors may be meta or symbolic ones. Raises `PlanUnknownError` when a conversion fails, or when two keys are
    for one name: which one counts is not guessed.
    """
    converters = [transform for transform in transforms if hasattr(transform, "operations")]
    renamings = [transform for transform in transforms if not hasattr(transform, "operations")]
    found: dict[str, Derived] = {}
    groups: dict[str, tuple[Any, list[str]]] = {}
    for key in sorted(tensors, key=_natural):
        name, pattern, converter = key, None, None
        for renaming in renamings:
            name = renaming.rename_source_key(name)[0]
        for item in converters:
            name, pattern = item.rename_source_key(name)
            if pattern is not None:
                converter = item
                break
        if converter is None:
            _add(found, name, Derived(tensor=tensors[key], keys=(key,)))
            continue
        group, keys = groups.setdefault(name, (pristine(converter), []))
        group.add_tensor(name, key, pattern, tensors[key])
        keys.append(key)
    for name, (group, keys) in groups.items():
        operations = tuple(type(operation).__name__ for operation in group.operations)
        for target, tensor in _converted(group, name, model, operations).items():
            _add(found, target, Derived(tensor=tensor, keys=tuple(keys), operations=operations))
    return found


def _converted(group: Any, name: str, model: Any, operations: Sequence[str]) -> dict[str, Any]:
    try:
        return converted(group, name, model=model)
    except Exception as error:  # whatever a conversion raises, refusals to be followed without values included
        text = first_line(error)
        raise PlanUnknownError(f"the recorded conversion of {name} by {' and '.join(operations)}: {text}") from error


def _add(found: dict[str, Derived], name: str, made: Derived) -> None:
    if name in found:
        both = " and ".join((found[name].keys[0], made.keys[0]))
        raise PlanUnknownError(f"the recorded base stage is ambiguous: {both} are both for {name}")
    found[name] = made


def _natural(key: str) -> list[tuple[Any, ...]]:
    """The order in which the loader takes keys: numbers as numbers, also at the end of a part."""
    parts: list[tuple[Any, ...]] = []
    for part in key.split("."):
        text = part.rstrip("0123456789")
        parts.append((0, int(part)) if part.isdigit() else (1, text, int(part[len(text) :] or -1)))
    return parts
