"""What module classes declare about loading (Transformers' class attributes), and buffers that are rebuilt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..facts import EMPTY, ClassDeclaration, FrozenDict, RebuildableBufferFacts
from ..introspect.attributes import class_attribute, own, qualified, read
from ..introspect.plain import encodable
from ..introspect.walk import Walk
from ..introspect.wrappers import registry
from ..loading.releases import is_pretrained
from ..loading.transformers4_rules import tied_names
from ..names import joined, natural_key

REBUILDABLE_SPECS = "_hp_rebuildable_buffer_specs"

_SEQUENCES = {
    "keep_in_fp32": "_keep_in_fp32_modules",
    "keep_in_fp32_strict": "_keep_in_fp32_modules_strict",
    "ignore_on_load_missing": "_keys_to_ignore_on_load_missing",
    "ignore_on_load_unexpected": "_keys_to_ignore_on_load_unexpected",
    "ignore_on_save": "_keys_to_ignore_on_save",
    "no_split_modules": "_no_split_modules",
}
_MARKS = (*_SEQUENCES.values(), "_tied_weights_keys", "base_model_prefix")
_MARK_NAMES = frozenset(_MARKS)


def declarations(walk: Walk) -> tuple[ClassDeclaration, ...]:
    """The declarations of every module whose class makes any, in walk order."""
    kinds = {type(module.module) for module in walk.modules}
    declaring = {kind for kind in kinds if any(class_attribute(kind, mark) not in (None, "") for mark in _MARKS)}
    chosen = [
        module
        for module in walk.modules
        if not module.wrapper and (type(module.module) in declaring or not _MARK_NAMES.isdisjoint(module.values))
    ]
    return tuple([_declaration(walked.module, walked.fqn) for walked in chosen])


def _declaration(module: Any, fqn: str) -> ClassDeclaration:
    tied = own(module, "_tied_weights_keys")
    prefix = own(module, "base_model_prefix", "")
    prefix = encodable(prefix) if isinstance(prefix, str) else ""
    return ClassDeclaration(
        fqn=fqn,
        qualified_type=qualified(type(module)),
        tied_weights=_text_mapping(tied) or EMPTY,
        tied_weights_form=type(tied).__name__,
        tied_weights_names=() if isinstance(tied, Mapping) else _texts(tied),
        active_ties=_text_mapping(_active_ties(module)),
        tie_word_embeddings=_tie_flag(own(module, "config")),
        base_model_prefix=prefix,
        base_model_present=bool(prefix) and own(module, prefix) is not None,
        **{field: _texts(own(module, name)) for field, name in _SEQUENCES.items()},
    )


def _active_ties(module: Any) -> Any:
    """The ties that the library keeps as in force; before it kept any, those of the embeddings that it makes."""
    if hasattr(type(module), "get_expanded_tied_weights_keys") or not is_pretrained(module):
        return own(module, "all_tied_weights_keys")
    return tied_names(module)


def _tie_flag(config: Any) -> bool | None:
    flag = config.get("tie_word_embeddings") if isinstance(config, Mapping) else read(config, "tie_word_embeddings")
    return flag if isinstance(flag, bool) else None


def _texts(value: Any) -> tuple[str, ...]:
    """The strings of a sequence; a set in natural order, because sets have none."""
    if isinstance(value, str):
        return (encodable(value),)
    if not isinstance(value, Iterable):
        return ()
    texts = [encodable(str(element)) for element in value]
    return tuple(sorted(texts, key=natural_key) if isinstance(value, (set, frozenset)) else texts)


def _text_mapping(value: Any) -> FrozenDict | None:
    if not isinstance(value, Mapping):
        return None
    return FrozenDict({encodable(str(key)): encodable(str(text)) for key, text in value.items()})


def rebuildable_buffers(walk: Walk) -> tuple[RebuildableBufferFacts, ...]:
    """Every derived buffer that its module promises to rebuild, in walk order."""
    promising = [module for module in walk.modules if REBUILDABLE_SPECS in module.values]
    return tuple([fact for walked in promising for fact in _rebuildable(walked.module, walked.fqn)])


def _rebuildable(module: Any, fqn: str) -> Iterator[RebuildableBufferFacts]:
    specs = registry(module, REBUILDABLE_SPECS)
    buffers = registry(module, "_buffers")
    hidden = registry_set(module, "_non_persistent_buffers_set")
    for name, spec in specs.items():
        buffer = buffers.get(name)
        yield RebuildableBufferFacts(
            fqn=joined(fqn, encodable(str(name))),
            has_source=_part(spec, "source") is not None,
            has_factory=_part(spec, "factory") is not None,
            present=buffer is not None,
            persistent=buffer is not None and name not in hidden,
            is_meta=bool(read(buffer, "is_meta", False)),
        )


def registry_set(module: Any, name: str) -> frozenset[Any]:
    """A set that a module keeps in its `__dict__`, empty when there is none."""
    names = object.__getattribute__(module, "__dict__").get(name)
    return frozenset(names) if isinstance(names, (set, frozenset)) else frozenset()


def _part(spec: Any, name: str) -> Any:
    return spec.get(name) if isinstance(spec, Mapping) else read(spec, name)
