"""What a quantisation is told to leave out, and what the library makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..analysis.model_config import quantisation_settings
from ..analysis.wrapper_names import without_adapter
from ..facts import PartConfig, SkippedName, Unknown
from ..introspect.attributes import read
from ..introspect.plain import encodable
from ..introspect.walk import Walk, WalkedModule
from ..introspect.wrappers import registry
from ..names import below, natural_key
from .configurations import ModelConfigs

_TRANSFORMERS_SETTINGS = (
    "modules_to_not_convert",
    "llm_int8_skip_modules",
    "linear_weights_not_to_quantize",
    "ignored_layers",
)
_COMPRESSED_SETTINGS = ("ignore",)
_CODES = ("int", "float8", "float4")

Matches = Callable[[str, str, Any], bool]


def quantisation_facts(walk: Walk, configs: ModelConfigs) -> dict[str, Any]:
    """The fields of the section `model` about what the quantisation leaves out."""
    skips: list[SkippedName] = []
    heads: list[str] = []
    for part in (*((configs.whole,) if configs.whole else ()), *configs.parts):
        settings = quantisation_settings(part.config)
        listed = list(_listed_names(settings)) if settings else []
        if not listed:
            continue
        modules = _leaves(walk, part.fqn)
        skips += [
            SkippedName(setting=setting, name=name, matched=_matched(setting, name, modules))
            for setting, name in listed
        ]
        heads += _quantised_heads(walk, part, modules)
    return {"quantisation_skips": tuple(skips), "quantised_heads": tuple(sorted(heads, key=natural_key))}


def _listed_names(settings: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for setting in (*_TRANSFORMERS_SETTINGS, *_COMPRESSED_SETTINGS):
        names = settings.get(setting)
        names = (names,) if isinstance(names, str) else names
        for name in names if isinstance(names, (tuple, list)) else ():
            yield setting, encodable(str(name))


def _leaves(walk: Walk, fqn: str) -> dict[str, WalkedModule]:
    """The modules below `fqn` that hold tensors themselves, by every name that they have within that module."""
    leaves = {}
    for module in walk.modules:
        values = module.values
        if module.wrapper or not (values.get("_parameters") or values.get("_buffers")):
            continue
        for name in module.names:
            if below(name, fqn):
                leaves[without_adapter(name.removeprefix(f"{fqn}.") if fqn else name)] = module
    return leaves


def _matched(setting: str, pattern: str, modules: Mapping[str, WalkedModule]) -> tuple[str, ...] | Unknown:
    """The modules that the library leaves out by the name, or why nobody knows."""
    try:
        matches = _compressed_tensors() if setting in _COMPRESSED_SETTINGS else _transformers()
        names = [name for name, module in modules.items() if matches(pattern, name, module.module)]
    except ImportError:
        return Unknown(f"the installed libraries do not say which modules {setting} leaves out")
    except re.error as error:
        return Unknown(f"{setting}: {pattern!r} is no regular expression: {error}")
    return tuple(sorted(names, key=natural_key))


def _transformers() -> Matches:
    """Whether the installed Transformers leaves a module out by a name. Raises `ImportError`."""
    from transformers.quantizers.quantizers_utils import should_convert_module

    return lambda pattern, name, module: not should_convert_module(name, [pattern])


def _compressed_tensors() -> Matches:
    """The same of compressed-tensors, whose list also has expressions (`re:`) and names of classes."""
    from compressed_tensors.utils.match import is_match

    return lambda pattern, name, module: bool(is_match(name, module, pattern))


def _quantised_heads(walk: Walk, part: PartConfig, modules: Mapping[str, WalkedModule]) -> list[str]:
    """The modules that the library leaves out when it is given no list, and that hold codes."""
    holder = next((module for module in walk.modules if module.fqn == part.fqn and not module.wrapper), None)
    if holder is None or not callable(read(holder.module, "get_output_embeddings")):
        return []
    try:
        from transformers.quantizers.base import get_keys_to_not_convert

        names = get_keys_to_not_convert(holder.module)
    except Exception:  # a private function, on a model of any class
        return []
    return [modules[name].fqn for name in names if name in modules and _holds_codes(modules[name])]


def _holds_codes(module: WalkedModule) -> bool:
    dtypes = (str(read(tensor, "dtype")).removeprefix("torch.") for tensor in _weights(module))
    return any(dtype.removeprefix("u").startswith(_CODES) for dtype in dtypes)


def _weights(module: WalkedModule) -> Iterable[Any]:
    for name in ("_parameters", "_buffers"):
        yield from (tensor for key, tensor in registry(module.module, name).items() if "weight" in str(key))
