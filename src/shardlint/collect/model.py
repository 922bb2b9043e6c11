"""The `model` section: one walk, then plain facts of every module and tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..analysis.model_config import architectures_of
from ..facts import EMPTY, FrozenDict, ModelCounts, ModelFacts, ModuleFacts, WrapperFacts
from ..introspect.attributes import author_type, class_attribute, own, qualified, read, signature_text
from ..introspect.plain import encodable
from ..introspect.type_globs import matches_type
from ..introspect.walk import Walk, WalkedModule
from ..introspect.wrappers import registry
from ..loading.releases import has_conversions
from ..loading.transformers4_rules import class_mapping
from ..names import natural_key
from .adapters import adapter_facts
from .configurations import is_config, model_configs, plain_config
from .declarations import declarations, rebuildable_buffers
from .fast_build import opened, sealed
from .hidden import hidden_facts
from .numerics import in_job, module_settings
from .offload import offload_reasons
from .quantisation import quantisation_facts
from .sharding.beside import layouts_beside
from .tensors import TensorReader, sample_of

_PLACEHOLDER_MARKS = ("is_placeholder", "_is_placeholder")


def model_facts(walk: Walk, *, placeholders: Iterable[str] = ()) -> ModelFacts:
    """Return the facts of the walked model. `placeholders` are the contract's globs over names of classes."""
    reader = TensorReader(layouts_beside(walk), digests=in_job())
    tensors = tuple([reader.read(walked) for walked in walk.tensors])
    configs = model_configs(walk)
    config = configs.whole.config if configs.whole is not None and not configs.whole.unreadable else None
    modules = _ModuleReader(tuple(placeholders)).read_all(walk)
    parameters = [tensor for tensor in tensors if tensor.kind == "parameter"]
    return ModelFacts(
        qualified_type=qualified(type(walk.root)),
        model_type=_text(config, "model_type"),
        architectures=architectures_of(config),
        config=config,
        config_fqn=configs.whole.fqn if configs.whole is not None else "",
        config_unreadable=configs.whole.unreadable if configs.whole is not None else "",
        part_configs=configs.parts,
        modules=modules,
        tensors=tensors,
        counts=ModelCounts(
            modules=len(modules),
            parameters=len(parameters),
            buffers=len(tensors) - len(parameters),
            parameter_elements=sum([math.prod(tensor.shape) for tensor in parameters if tensor.unreadable is None]),
        ),
        wrappers=tuple(_wrapper(module) for module in walk.modules if module.wrapper),
        rebuildable_buffers=rebuildable_buffers(walk),
        declarations=declarations(walk),
        aliases_cut=tuple(walk.cut),
        cycles=tuple(walk.cycles),
        key_mapping=key_mapping(walk.root),
        offload=offload_reasons(walk),
        adapters=adapter_facts(walk),
        hidden=hidden_facts(walk),
        sample=sample_of(walk) if in_job() else None,
        **quantisation_facts(walk, configs),
    )


def key_mapping(model: Any) -> str | None:
    """
    How checkpoint keys become live names: `identity`, or `conversions` when Transformers registers some for the model.

    Of a model that PEFT wraps, the mapping of the model inside. A quantised model is stored in parts, so its keys are
    never its names. None when the installed Transformers does not say.
    """
    if any(base.__name__ == "PeftModel" for base in type(model).__mro__):
        model = read(read(model, "base_model"), "model", model)
    if not any(base.__name__ == "PreTrainedModel" for base in type(model).__mro__):
        return "identity"
    if read(model, "hf_quantizer") is not None:
        return "conversions"
    try:
        if not has_conversions():
            return "conversions" if class_mapping(model) else "identity"
        from transformers.conversion_mapping import get_model_conversion_mapping

        return "conversions" if get_model_conversion_mapping(model, add_legacy=False) else "identity"
    except Exception:  # a private function: gone, moved, or unable to read this model
        return None


def config_of(model: Any) -> FrozenDict | None:
    """The model's own configuration as plain values, by which packs know it; None when there is none to read."""
    config = own(model, "config")
    return plain_config(config)[0] if is_config(config) else None


def _text(config: FrozenDict | None, key: str) -> str | None:
    value = (config or EMPTY).get(key)
    return value if isinstance(value, str) and value else None


def _wrapper(wrapper: WalkedModule) -> WrapperFacts:
    return WrapperFacts(
        fqn=wrapper.fqn,
        kind=wrapper.wrapper or "",
        qualified_type=qualified(type(wrapper.module)),
        wrapped_type=None if wrapper.wrapped is None else qualified(type(wrapper.wrapped)),
    )


class _ModuleReader:
    """Turns walked modules into facts; what depends on the class alone is found once per class."""

    def __init__(self, globs: tuple[str, ...]) -> None:
        self.globs = globs
        self.types: dict[type, str] = {}
        self.signatures: dict[type, str] = {}
        self.placeholders: dict[type, str | None] = {}
        self.dynamic: dict[type, bool] = {}

    def read_all(self, walk: Walk) -> tuple[ModuleFacts, ...]:
        return tuple([self.read(module) for module in walk.modules if not module.wrapper])

    def read(self, walked: WalkedModule) -> ModuleFacts:
        kind, values, names = type(walked.module), walked.values, walked.names
        if kind not in self.types:
            self._read_class(kind)
        if len(names) > 1:
            names = sorted(set(names), key=natural_key)
        facts = opened(ModuleFacts)
        facts.fqn = names[0]
        facts.aliases = tuple(names)
        facts.qualified_type = self.types[kind]
        facts.forward_signature = self._own_signature(values) if "forward" in values else self.signatures[kind]
        facts.training = bool(values.get("training", False))
        facts.placeholder = self.placeholders[kind] or self._placeholder(walked)
        facts.settings = module_settings(kind, values)
        return sealed(facts, ModuleFacts)

    def _read_class(self, kind: type) -> None:
        self.types[kind] = qualified(kind)
        self.placeholders[kind] = self._placeholder_class(kind)
        self.dynamic[kind] = any(isinstance(class_attribute(kind, mark), property) for mark in _PLACEHOLDER_MARKS)
        forward = class_attribute(kind, "forward")
        function = forward.__func__ if isinstance(forward, (staticmethod, classmethod)) else forward
        text = signature_text(function, skip_self=not isinstance(forward, staticmethod))
        self.signatures[kind] = encodable(text)

    def _own_signature(self, values: dict[str, Any]) -> str:
        return encodable(signature_text(values["forward"], skip_self=False))

    def _placeholder(self, walked: WalkedModule) -> str | None:
        values = walked.values
        for mark in _PLACEHOLDER_MARKS:
            if mark in values and _is_true(values[mark]):
                return f"it says {mark}"
            if self.dynamic[type(walked.module)] and _is_true(read(walked.module, mark)):
                return f"it says {mark}"
        return _uninitialised(walked.module) if "_initialize_hook" in values else None

    def _placeholder_class(self, kind: type) -> str | None:
        original = author_type(kind)
        if "Placeholder" in original.__name__:
            return f"its class is called {original.__name__}"
        for mark in _PLACEHOLDER_MARKS:
            if _is_true(class_attribute(kind, mark)):
                return f"its class says {mark}"
        glob = next((glob for glob in self.globs if matches_type(glob, kind)), None)
        return f"its class matches the contract's placeholder {glob!r}" if glob else None


def _uninitialised(module: Any) -> str | None:
    for registered in (*registry(module, "_parameters").values(), *registry(module, "_buffers").values()):
        if any(base.__name__ == "UninitializedTensorMixin" for base in type(registered).__mro__):
            return "it is lazy and was never initialised"
    return None


def _is_true(value: Any) -> bool:
    return isinstance(value, (bool, int)) and bool(value)
