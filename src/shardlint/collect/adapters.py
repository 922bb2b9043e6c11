"""Adapters, told by the `peft_config` of a module and the layers that carry their tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..analysis.wrapper_names import without_adapter
from ..facts import AdapterFacts
from ..introspect.attributes import own, qualified, read
from ..introspect.plain import encodable
from ..introspect.walk import Walk, WalkedModule, text
from ..introspect.wrappers import registry
from ..names import below, joined, natural_key
from .adapter_keys import stored_as

_TASK_MODULES = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
}
"""What PEFT adds to `modules_to_save` for a task, whether the model has such modules or not."""
_RESTRICTIONS = ("layers_to_transform", "layers_pattern", "exclude_modules")


def adapter_facts(walk: Walk) -> tuple[AdapterFacts, ...]:
    """Every adapter of every module that declares some; an inner module that repeats an outer one's is left out."""
    adapters = []
    seen: set[tuple[str, int]] = set()  # several adapters may share one configuration
    for module in walk.modules:
        declared = module.values.get("peft_config")
        if not isinstance(declared, Mapping):
            continue
        for name, config in declared.items():
            if isinstance(name, str) and (name, id(config)) not in seen:
                seen.add((name, id(config)))
                adapters.append(_adapter(walk, module, name, config))
    return tuple(adapters)


def _adapter(walk: Walk, holder: WalkedModule, name: str, config: Any) -> AdapterFacts:
    base = _base_of(walk, holder)
    targets = read(config, "target_modules")
    inside = [module for module in walk.modules if below(module.fqn, holder.fqn)]
    carriers = [module for module in inside if _carries(module.module, name)]
    matched = [module.fqn for module in carriers if _parameter_name(module) is None]
    keys = (key for tensor in walk.tensors for key in tensor.names if below(key, holder.fqn) and name in key.split("."))
    layers = read(config, "layers_to_transform")
    return AdapterFacts(
        name=encodable(name),
        kind=_kind(config),
        base=base.fqn,
        base_type=qualified(type(base.module)),
        targets=() if isinstance(targets, str) else _texts(targets),
        pattern=encodable(targets) if isinstance(targets, str) else "",
        target_parameters=_texts(read(config, "target_parameters")),
        modules_to_save=_texts(read(config, "modules_to_save")),
        task_modules=_task_modules(config),
        layers=None if layers is None else _integers(layers),
        layers_pattern=_texts(read(config, "layers_pattern")),
        rank_patterns=_texts([*(read(config, "rank_pattern") or ()), *(read(config, "alpha_pattern") or ())]),
        matched=tuple(sorted(matched, key=natural_key)),
        matched_parameters=_ordered(_adapted_parameter(module, base.fqn) for module in carriers),
        saved=_ordered(
            _in_base(alias, base.fqn) for module in inside if _saves(module, name) for alias in module.names
        ),
        keys=tuple(sorted(keys, key=natural_key)),
        stored_as=stored_as(walk, holder, name, config),
        active=_is_active(walk, holder, name, matched),
        restricted=any(read(config, option) not in (None, (), [], "") for option in _RESTRICTIONS),
    )


def _base_of(walk: Walk, holder: WalkedModule) -> WalkedModule:
    """The model inside the modules that PEFT puts around it: `base_model.model`, or the holder itself."""
    base = holder
    for name in ("base_model", "model"):
        inner = registry(base.module, "_modules").get(name)
        record = walk.find_module(inner) if inner is not None else None
        if record is not None and type(base.module).__module__.startswith("peft."):
            base = record
    return base


def _in_base(name: str, base: str) -> str:
    """The name within the base model of a module, without what PEFT puts around modules."""
    return without_adapter(name.removeprefix(f"{base}.") if base else name)


def _parameter_name(module: WalkedModule) -> str | None:
    """The name of the one parameter that the layer adapts, None when it adapts its module."""
    name = module.values.get("parameter_name")
    return name if isinstance(name, str) else None


def _adapted_parameter(module: WalkedModule, base: str) -> str | None:
    name = _parameter_name(module)
    return None if name is None else joined(_in_base(module.fqn, base), encodable(name))


def _saves(module: WalkedModule, adapter: str) -> bool:
    """Whether the module is a wrapper that holds a trained copy of a module for the adapter."""
    copies = registry(module.module, "_modules").get("modules_to_save")
    return copies is not None and adapter in {text(key) for key in registry(copies, "_modules")}


def _task_modules(config: Any) -> tuple[str, ...]:
    task = read(config, "task_type")
    return _TASK_MODULES.get(str(read(task, "value", task)), ())


def _integers(value: Any) -> tuple[int, ...]:
    numbers = value if isinstance(value, Iterable) else (value,)
    return tuple(number for number in numbers if isinstance(number, int))


def _ordered(names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if name}, key=natural_key))


def _is_active(walk: Walk, holder: WalkedModule, name: str, matched: list[str]) -> bool | None:
    """Whether the adapter is in use: as the model around it says, else the layers that carry it."""
    carriers = [module.module for module in walk.modules if module.fqn in set(matched)]
    for source, attribute in ((holder.module, "active_adapter"), *((layer, "active_adapters") for layer in carriers)):
        active = read(source, attribute)
        if isinstance(active, str):
            return active == name
        if isinstance(active, (list, tuple)):
            return name in active
    return None


def _carries(module: Any, adapter: str) -> bool:
    """Whether the module holds a layer of the adapter beside what it adapts."""
    children = registry(module, "_modules")
    if "base_layer" not in children:
        # A prompt for attention stands around the module itself; that of one adapter at a time is in the model.
        return "adaption_prompt" in registry(module, "_parameters")
    holders = [children[name] for name in children if name != "base_layer"]
    return any(
        adapter in {text(key) for key in (*registry(holder, "_modules"), *registry(holder, "_parameters"))}
        for holder in holders
    )


def _kind(config: Any) -> str:
    kind = own(config, "peft_type")
    return encodable(str(read(kind, "value", kind) or type(config).__name__))


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (encodable(value),)
    if not isinstance(value, Iterable):
        return ()
    return tuple(sorted((encodable(str(element)) for element in value), key=natural_key))
