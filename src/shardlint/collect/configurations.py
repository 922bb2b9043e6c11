"""Which module's configuration describes which parameters, through whatever a model is wrapped in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from ..facts import FrozenDict, PartConfig
from ..introspect.attributes import class_attribute, own, read
from ..introspect.plain import plain_mapping
from ..introspect.walk import Walk, WalkedModule, WalkedTensor
from ..names import below, first_line

NEARLY_ALL = 0.9
"""The share of a model's parameter elements that its configuration describes; the rest are heads put beside it."""

_NOTHING = (str, bytes, int, float, bool, type(None), type)


@frozen(kw_only=True)
class ModelConfigs:
    """
    `whole` describes (nearly) all parameters, None when no configuration does; `parts` each those of one part.

    A part is the outermost module with a configuration of the kind that Transformers reads.
    """

    whole: PartConfig | None = None
    parts: tuple[PartConfig, ...] = ()


def model_configs(walk: Walk) -> ModelConfigs:
    """
    Find the configurations of the walked model.

    Those with a `model_type` count before all others, wherever their module stands in the tree: what a training loop
    keeps under `config` on a wrapper describes the run. Without any of them, another mapping or dataclass counts when
    its module holds (nearly) all parameters.
    """
    declaring = {
        kind for kind in {type(module.module) for module in walk.modules} if class_attribute(kind, "config") is not None
    }
    candidates = [
        module
        for module in walk.modules
        if not module.wrapper and ("config" in module.values or type(module.module) in declaring)
    ]
    typed = _outermost(module for module in candidates if not _is_adapter_shell(module) and _model_type(module))
    others = _outermost(module for module in candidates if not _model_type(module) and is_config(_config(module)))
    parts = tuple(read_config(module) for module in typed)
    whole = next((part for part in parts if _holds_nearly_all(walk, part.fqn)), None)
    if whole is not None:
        return ModelConfigs(whole=whole)
    plain = next((module for module in others if _holds_nearly_all(walk, module.fqn)), None)
    return ModelConfigs(whole=read_config(plain) if plain is not None else None, parts=parts)


def read_config(module: WalkedModule) -> PartConfig:
    """The configuration of one module as plain values, or why it cannot be read."""
    config, why = plain_config(_config(module))
    if config is None:
        return PartConfig(fqn=module.fqn, unreadable=why or "it has no configuration")
    return PartConfig(fqn=module.fqn, config=config)


def plain_config(config: Any) -> tuple[FrozenDict | None, str]:
    """A configuration as plain values (`to_dict()`, a mapping, a dataclass, attributes), or None and why not."""
    to_dict = read(config, "to_dict")
    if callable(to_dict) and not isinstance(config, type):
        try:
            said = to_dict()
        except Exception as error:  # user code
            return None, f"its to_dict() raised {first_line(error, kind=True)}"
        settings = plain_mapping(said)
        return (None, "its to_dict() gave no mapping") if settings is None else (_as_live(config, settings), "")
    settings = plain_mapping(config)
    if settings is None and hasattr(config, "__dict__"):
        settings = plain_mapping(_public(config))
    return settings, "" if settings is not None else f"a {type(config).__qualname__} is no mapping that can be read"


def _as_live(config: Any, settings: FrozenDict) -> FrozenDict:
    """The settings with the numbers that the object itself has, which is what code reads: `to_dict()` may differ."""
    live: dict[str, Any] = {}
    for name, value in _public(config).items():
        said = settings.get(name)
        if isinstance(said, FrozenDict) and callable(read(value, "to_dict")):
            live[name] = _as_live(value, said)
        elif isinstance(value, int) and not isinstance(value, bool) and said != value:
            live[name] = value
    return FrozenDict({**settings, **live}) if live else settings


def _public(config: Any) -> dict[str, Any]:
    """The attributes of an object, private ones left out."""
    values = read(config, "__dict__")
    items = values.items() if isinstance(values, dict) else ()
    return {name: value for name, value in items if isinstance(name, str) and not name.startswith("_")}


def _config(module: WalkedModule) -> Any:
    return own(module.module, "config")


def is_config(config: Any) -> bool:
    """Whether the value says anything: no path, no name, no number, no child module that is called so."""
    if isinstance(config, _NOTHING) or "_parameters" in (read(config, "__dict__") or {}):
        return False
    return isinstance(config, Mapping) or callable(read(config, "to_dict")) or bool(read(config, "__dict__"))


def _model_type(module: WalkedModule) -> str:
    """The `model_type` of the module's configuration, empty when it has none."""
    config = _config(module)
    kind = config.get("model_type") if isinstance(config, Mapping) else read(config, "model_type")
    return kind if isinstance(kind, str) else ""


def _is_adapter_shell(module: WalkedModule) -> bool:
    """Whether the module is one that PEFT puts around a model: it shows the configuration of the model inside."""
    return any(base.__module__.startswith("peft.") for base in type(module.module).__mro__)


def _outermost(modules: Iterable[WalkedModule]) -> list[WalkedModule]:
    """The modules that none of the others encloses. The walk is in pre-order: an outer one comes first."""
    chosen: list[WalkedModule] = []
    names: set[str] = set()
    for module in modules:
        if names.isdisjoint(_enclosing(module.fqn)):
            chosen.append(module)
            names.update(module.names)
    return chosen


def _enclosing(name: str) -> Iterator[str]:
    """The name and every name that it lies below, the root's included."""
    yield name
    while name:
        name = name.rpartition(".")[0]
        yield name


def _holds_nearly_all(walk: Walk, fqn: str) -> bool:
    if not fqn:
        return True
    sizes = [
        (_elements(tensor), any(below(name, fqn) for name in tensor.names))
        for tensor in walk.tensors
        if tensor.kind == "parameter"
    ]
    whole = sum(size for size, _ in sizes)
    return bool(whole) and sum(size for size, inside in sizes if inside) >= NEARLY_ALL * whole


def _elements(tensor: WalkedTensor) -> int:
    """The elements of a tensor; one for a tensor that cannot say."""
    try:
        return max(1, int(tensor.tensor.numel()))
    except Exception:  # a lazy parameter, or a class of its own
        return 1
