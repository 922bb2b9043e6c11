"""The live tensors under the names that the loader knows: wrappers and adapters removed."""

from __future__ import annotations

from typing import Any

from ..analysis.wrapper_names import base_name
from ..facts import ModelFacts
from ..introspect.wrappers import wrapping
from .loader import PlannedTarget
from .planner import LiveModel


def unwrapped(model: Any) -> Any:
    """Return the innermost model that wrappers and PEFT adapters hold."""
    while True:
        wrapper = wrapping(model)
        if wrapper is None and type(model).__module__.startswith("peft.") and hasattr(model, "get_base_model"):
            return unwrapped(model.get_base_model())
        inner = wrapper[1] if wrapper else None
        if inner is None:
            return model
        model = inner


def is_adapted(model: Any) -> bool:
    """Whether the model carries PEFT adapters around its own tensors."""
    return type(model).__module__.startswith("peft.") or hasattr(model, "peft_config")


def from_model_facts(facts: ModelFacts, *, adapted: bool = False) -> LiveModel:
    """Return the tensors of a live model from its facts; of an adapted model only those of the base, by its names."""
    tensors: dict[str, PlannedTarget] = {}
    unsaved: set[str] = set()
    for tensor in facts.tensors:
        for alias in tensor.aliases:
            name = base_name(alias) if adapted else alias
            if name is None:
                continue
            if tensor.in_state_dict:
                tensors[name] = PlannedTarget(shape=tensor.shape, dtype=tensor.dtype, identity=tensor.fqn)
            else:
                unsaved.add(name)
    return LiveModel(tensors=tensors, unsaved_buffers=frozenset(unsaved), architecture=facts.qualified_type)


def from_meta_model(model: Any) -> LiveModel:
    """Return the tensors of a model that was built on meta, as `state_dict()` names them."""
    identities: dict[int, str] = {}
    tensors: dict[str, PlannedTarget] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if hasattr(value, "shape"):
            identity = identities.setdefault(id(value), name)
            dtype = str(value.dtype).removeprefix("torch.")
            tensors[name] = PlannedTarget(shape=tuple(value.shape), dtype=dtype, identity=identity)
    unsaved = frozenset(name for name, _ in model.named_buffers(remove_duplicate=False) if name not in tensors)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    return LiveModel(tensors=tensors, unsaved_buffers=unsaved, architecture=kind, basis="config")
