"""Heads: what the class that a checkpoint names, and the class that loads it, do not have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from ..facts import CheckpointFacts, FrozenDict, HeadFacts, PlanFacts
from .live_names import from_meta_model, unwrapped
from .loader import PlanUnknownError
from .planner import make_plan
from .releases import is_pretrained

_NUMBER = re.compile(r"[0-9]+")


def heads_of(model: Any, plan: PlanFacts, checkpoint: CheckpointFacts) -> HeadFacts | None:
    """
    Compare the two classes, both built on meta, where the plan leaves something without a place.

    `model` is the live model, None for a plan of the configuration. None where nothing is without a place, and where
    a class is not one of Transformers' or cannot be built.
    """
    missing = [tensor.name for tensor in plan.tensors if tensor.status == "missing"]
    unexpected = [leftover.key for leftover in plan.leftovers if leftover.reason == "unexpected"]
    if not (missing or unexpected) or not checkpoint.config:
        return None
    named = _named(checkpoint)
    live = None if model is None else _library_class(unwrapped(model))
    if named is None:
        assumed = plan.architecture.rpartition(".")[2]
        return HeadFacts(stored_class=assumed, assumed=True, unused=tuple(_taken(checkpoint, unexpected)))
    if live is None:
        return None
    if live.__name__ == named:
        return HeadFacts(stored_class=named, lacking=tuple(missing))
    stored_model = _built(checkpoint, named)
    live_model = _built(checkpoint, live.__name__) or _built_alike(live, unwrapped(model))
    if stored_model is None or live_model is None:
        return None
    places = _places(stored_model, checkpoint) if unexpected else {}
    taken = {key: places[key] for key in unexpected if key in places}
    return _compared(stored_model, live_model, missing, taken)


def _compared(stored_model: Any, live_model: Any, missing: Sequence[str], taken: Mapping[str, str]) -> HeadFacts:
    """Compare two models; `taken` are the keys without a place that the stored class takes, with their names there."""
    stored, loading = _Names(stored_model), _Names(live_model)
    other = [name for name in missing if not stored.has(name, loading.prefix)]
    return HeadFacts(
        stored_class=type(stored_model).__name__,
        new=tuple(name for name in other if loading.has(name, "")),
        lacking=tuple(sorted(set(missing) - set(other))),
        unused=tuple(key for key, name in taken.items() if not loading.has(name, stored.prefix)),
    )


class _Names:
    """The names of a class by pattern: how many layers there are is the configuration's, not the class's."""

    def __init__(self, model: Any) -> None:
        prefix = getattr(model, "base_model_prefix", "")
        self.prefix = f"{prefix}." if prefix else ""
        patterns = {_pattern(name) for name in model.state_dict()}
        self._patterns = patterns | {name.removeprefix(self.prefix) for name in patterns}

    def has(self, name: str, prefix: str) -> bool:
        """Whether the class has the name, with or without the prefix of a base model."""
        pattern = _pattern(name)
        return not self._patterns.isdisjoint((pattern, pattern.removeprefix(prefix)))


def _pattern(name: str) -> str:
    return _NUMBER.sub("#", name)


def _named(checkpoint: CheckpointFacts) -> str | None:
    names = None if checkpoint.config is None else checkpoint.config.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else None
    return first if isinstance(first, str) else None


def _library_class(model: Any) -> type | None:
    """The class of the model, or the nearest of its bases, that Transformers exports."""
    if not is_pretrained(model):
        return None
    import transformers

    return next((kind for kind in type(model).__mro__ if getattr(transformers, kind.__name__, None) is kind), None)


def _built(checkpoint: CheckpointFacts, name: str) -> Any:
    """A class on meta by the stored configuration, unquantised; None when it cannot be built."""
    from .meta_model import build_meta_model

    settings = {key: value for key, value in (checkpoint.config or {}).items() if key != "quantization_config"}
    config = FrozenDict({**settings, "architectures": (name,)})
    try:
        return build_meta_model(evolve(checkpoint, config=config)).model
    except PlanUnknownError:
        return None


def _built_alike(kind: type, model: Any) -> Any:
    """The class on meta by the configuration of the live model, for a part that has a configuration of its own."""
    from .meta_model import build_like

    try:
        return build_like(kind, model.config)
    except PlanUnknownError:
        return None


def _places(model: Any, checkpoint: CheckpointFacts) -> dict[str, str]:
    """The names that the stored keys fill in a class that was built on meta."""
    from .transformers_loader import TransformersLoader

    try:
        plan = make_plan(TransformersLoader(model, live_model=False), from_meta_model(model), checkpoint)
    except PlanUnknownError:
        return {}
    return {key: tensor.name for tensor in plan.tensors for key in tensor.sources}


def _taken(checkpoint: CheckpointFacts, keys: Sequence[str]) -> Iterator[str]:
    """Yield the keys that some class of the configuration's model type takes, where the folder names no class."""
    open_keys = list(keys)
    for name in _classes(checkpoint) if open_keys else ():
        model = _built(checkpoint, name)
        places = {} if model is None else _places(model, checkpoint)
        yield from (key for key in open_keys if key in places)
        open_keys = [key for key in open_keys if key not in places]
        if not open_keys:
            return


def _classes(checkpoint: CheckpointFacts) -> Iterable[str]:
    """The names of all classes with a head that Transformers lists for the model type."""
    from transformers.models.auto import modeling_auto

    kind = None if checkpoint.config is None else checkpoint.config.get("model_type")
    found: dict[str, None] = {}
    for table, names in vars(modeling_auto).items():
        if table.startswith("MODEL_FOR_") and table.endswith("_MAPPING_NAMES"):
            name = names.get(kind)
            found.update(dict.fromkeys((name,) if isinstance(name, str) else name or ()))
    return found
