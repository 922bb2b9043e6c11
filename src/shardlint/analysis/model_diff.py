"""
Two inventories of a model compared: each difference classified. Public, and without torch.

The inventory is the `model` section itself: modules, tensors by identity with all aliases, wrappers, configuration, and
what the caller said of its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from ..facts import FrozenDict, ModelFacts, TensorFacts
from ..names import natural_key

KINDS = (
    "model-type",
    "module-added",
    "module-removed",
    "module-type",
    "module-aliases",
    "signature",
    "training",
    "tensor-added",
    "tensor-removed",
    "aliases",
    "kind",
    "shape",
    "dtype",
    "device",
    "requires-grad",
    "meta",
    "persistent",
    "layout",
    "wrapper",
    "config",
    "source",
)
"""Every kind of difference, in the order in which they are reported."""

_TENSOR_FIELDS = {
    "kind": "kind",
    "shape": "shape",
    "dtype": "dtype",
    "device": "device",
    "requires-grad": "requires_grad",
    "meta": "is_meta",
    "persistent": "persistent",
    "layout": "layout",
}
_MODULE_FIELDS = {
    "module-type": "qualified_type",
    "module-aliases": "aliases",
    "signature": "forward_signature",
    "training": "training",
}
_MISSING = "<absent>"


@frozen(kw_only=True)
class ModelDifference:
    """
    One difference: its kind (one of `KINDS`), the FQN or configuration key, and the value on either side.

    `before` or `after` is None where the object does not exist.
    """

    kind: str
    fqn: str
    before: Any = None
    after: Any = None


def diff_models(a: ModelFacts, b: ModelFacts) -> tuple[ModelDifference, ...]:
    """
    Return what differs from `a` to `b`, ordered by kind and name; nothing for equal inventories.

    Tensors are paired by name: a tensor that is tied to other names than before gives `aliases` once for each group
    that changed, and no added or removed names beside it unless a name really appeared or vanished.
    """
    found = [*_model_type(a, b), *_modules(a, b), *_tensors(a, b), *_wrappers(a, b)]
    found += _mappings("config", "", a.config, b.config)
    found += _mappings("source", "", a.source, b.source)
    return tuple(sorted(found, key=lambda item: (KINDS.index(item.kind), natural_key(item.fqn))))


def _model_type(a: ModelFacts, b: ModelFacts) -> Iterator[ModelDifference]:
    if a.qualified_type != b.qualified_type:
        yield ModelDifference(kind="model-type", fqn="", before=a.qualified_type, after=b.qualified_type)


def _modules(a: ModelFacts, b: ModelFacts) -> Iterator[ModelDifference]:
    before = {alias: module for module in a.modules for alias in module.aliases}
    after = {alias: module for module in b.modules for alias in module.aliases}
    for name in before.keys() - after.keys():
        yield ModelDifference(kind="module-removed", fqn=name, before=before[name].qualified_type)
    for name in after.keys() - before.keys():
        yield ModelDifference(kind="module-added", fqn=name, after=after[name].qualified_type)
    yield from _pairs(before, after, _MODULE_FIELDS)


def _tensors(a: ModelFacts, b: ModelFacts) -> Iterator[ModelDifference]:
    before, after = a.tensor_by_name(), b.tensor_by_name()
    for name in before.keys() - after.keys():
        yield ModelDifference(kind="tensor-removed", fqn=name, before=_shown(before[name]))
    for name in after.keys() - before.keys():
        yield ModelDifference(kind="tensor-added", fqn=name, after=_shown(after[name]))
    yield from _pairs(before, after, {"aliases": "aliases", **_TENSOR_FIELDS})


def _pairs(before: dict[str, Any], after: dict[str, Any], names: dict[str, str]) -> Iterator[ModelDifference]:
    """Differences between objects of the same name, told once for a pair of objects under its first common name."""
    seen: set[tuple[int, int]] = set()
    known = before.keys() & after.keys()
    common = sorted(known, key=natural_key)
    for name in common:
        old, new = before[name], after[name]
        if (id(old), id(new)) in seen:
            continue
        seen.add((id(old), id(new)))
        for kind, attribute in names.items():
            was, now = getattr(old, attribute), getattr(new, attribute)
            if attribute == "aliases":
                # A name that appeared or vanished is told as such; here it matters which common names belong together.
                was, now = _within(was, known), _within(now, known)
            if was != now:
                yield ModelDifference(kind=kind, fqn=name, before=was, after=now)


def _within(aliases: tuple[str, ...], known: set[str]) -> tuple[str, ...]:
    return tuple(alias for alias in aliases if alias in known)


def _shown(tensor: TensorFacts) -> str:
    return f"{tensor.kind} {tensor.dtype}{list(tensor.shape)}"


def _wrappers(a: ModelFacts, b: ModelFacts) -> Iterator[ModelDifference]:
    before = {(wrapper.fqn, wrapper.kind): wrapper.qualified_type for wrapper in a.wrappers}
    after = {(wrapper.fqn, wrapper.kind): wrapper.qualified_type for wrapper in b.wrappers}
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            yield ModelDifference(kind="wrapper", fqn=key[0], before=before.get(key), after=after.get(key))


def _mappings(kind: str, prefix: str, a: FrozenDict | None, b: FrozenDict | None) -> Iterator[ModelDifference]:
    before, after = a or FrozenDict(), b or FrozenDict()
    for key in before.keys() | after.keys():
        was, now = before.get(key, _MISSING), after.get(key, _MISSING)
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(was, FrozenDict) and isinstance(now, FrozenDict):
            yield from _mappings(kind, name, was, now)
        elif was != now:
            yield ModelDifference(kind=kind, fqn=name, before=was, after=now)


__all__ = ["KINDS", "ModelDifference", "diff_models"]
