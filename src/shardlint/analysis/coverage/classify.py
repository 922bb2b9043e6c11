"""Classifies every live key, and every stored key without a place, by what tells which names are filled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from attrs import evolve

from ...facts import EntryFacts, Facts, ModelFacts, TensorFacts
from ..contract_globs import exclusions_of
from ..keys import KeyResolver, config_cuts, is_adapter, layer_counts, list_lengths, root_declaration
from ..model_config import architectures_of
from ..ties import wanted_pairs
from ..wrapper_names import may_be_adapters, without_adapter
from .evidence import Evidence
from .model import Coverage, CoverageStatus, SourceClass, TargetClass


def classified(facts: Facts, model: ModelFacts, filled: Evidence, basis: str, placeless: Iterable[str]) -> Coverage:
    """
    Classify every name of `state_dict()` by what `filled` tells, and the stored keys that found no place.

    `basis` names the evidence in the result.
    """
    heads = _Heads(facts, model, filled)
    target_of = _Targets(facts, model, filled, heads)
    source_of = _StoredKeys(facts, model, heads)
    targets = {
        name: target_of.classify(name, tensor)
        for tensor in model.tensors
        if tensor.in_state_dict
        for name in tensor.aliases
    }
    sources = {key: source_of.classify(key) for key in placeless}
    aside = facts.checkpoint.aside if facts.checkpoint else ()
    parts = tuple(item.name for item in aside if item.kind == "part")
    return with_status(
        Coverage(status=CoverageStatus.COMPLETE, basis=basis, targets=targets, sources=sources, unread_parts=parts)
    )


def with_status(coverage: Coverage) -> Coverage:
    """The coverage with the status that its classes give. One of which nothing was compared stays as it is."""
    if coverage.status is CoverageStatus.NOT_LOADED:
        return coverage
    incomplete = (
        bool(coverage.unread_parts)
        or bool({TargetClass.UNSUPPORTED_MISSING_TARGET, TargetClass.SHAPE_MISMATCH} & set(coverage.targets.values()))
        or SourceClass.UNSUPPORTED_ARCHITECTURAL_MISMATCH in coverage.sources.values()
    )
    return evolve(coverage, status=CoverageStatus.INCOMPLETE if incomplete else CoverageStatus.COMPLETE)


class _Targets:
    """Classifies live keys."""

    def __init__(self, facts: Facts, model: ModelFacts, filled: Evidence, heads: _Heads) -> None:
        self._filled = filled
        self._exclusions = exclusions_of(facts.contract)
        self._ignored = _class_patterns(model, "ignore_on_load_missing")
        self._new_head = heads.is_new
        self._part = facts.plan.part if facts.plan else ""
        self._adapter = is_adapter(model)
        self._partner: dict[str, list[str]] = {}
        for target, source in wanted_pairs(model, facts.contract).items():
            self._partner.setdefault(target, []).append(source)
            self._partner.setdefault(source, []).append(target)

    def classify(self, name: str, tensor: TensorFacts) -> TargetClass:
        if self._filled.has(name):
            return self._filled.how(name)
        if self._exclusions.of_tensor(name):
            return TargetClass.TRAINING_ONLY_INITIALIZATION
        others = [*tensor.aliases, *self._partner.get(name, ())]
        if any(self._filled.has(other) for other in others if other != name):
            return TargetClass.ALIAS_OR_NON_PERSISTENT
        if self._ignored and self._ignored.search(name):
            return TargetClass.IGNORED_BY_CLASS
        if self._adapter and may_be_adapters(name):
            return TargetClass.ADAPTER
        if self._part and not name.startswith(self._part):
            return TargetClass.NEW_HEAD
        return TargetClass.NEW_HEAD if self._new_head(name) else TargetClass.UNSUPPORTED_MISSING_TARGET


class _StoredKeys:
    """Classifies stored keys that no live tensor took."""

    def __init__(self, facts: Facts, model: ModelFacts, heads: _Heads) -> None:
        checkpoint = facts.checkpoint
        self._exclusions = exclusions_of(facts.contract)
        self._ignored = _class_patterns(model, "ignore_on_load_unexpected")
        self._unused_head = heads.is_unused
        self._resolver = KeyResolver(model)
        self._derived = {name for buffer in model.buffers if not buffer.persistent for name in buffer.aliases}
        self._entries = {entry.key: entry for entry in checkpoint.entries} if checkpoint else {}
        plan = facts.plan
        self._renamed = {leftover.key: leftover.renamed for leftover in plan.leftovers} if plan else {}
        names = model.state_dict_keys()
        self._lengths = list_lengths(names)
        stored_config = checkpoint.config if checkpoint else None
        self._cuts = config_cuts(model.config, stored_config)
        self._layer_counts = layer_counts(model.config) if stored_config is None or facts.model is None else set()

    def classify(self, key: str) -> SourceClass:
        if self._exclusions.of_key(key):
            return SourceClass.INFERENCE_ONLY_EXCLUSION
        if self._ignored and self._ignored.search(key):
            return SourceClass.IGNORED_BY_CLASS
        if any(name in self._derived for name in self._resolver.variants(key)) or _is_old_buffer(
            key, self._entries.get(key)
        ):
            return SourceClass.DERIVED_BUFFER
        if found := self._beyond(key):
            return found
        return SourceClass.UNUSED_HEAD if self._unused_head(key) else SourceClass.UNSUPPORTED_ARCHITECTURAL_MISMATCH

    def _beyond(self, key: str) -> SourceClass | None:
        """Whether the key belongs to a layer that the configuration of the live model cut off."""
        for name in (*self._resolver.variants(key), *self._resolver.variants(self._renamed.get(key, key))):
            for prefix, length in list_lengths([name]).items():
                live = self._lengths.get(prefix, 0)
                if live and length > live and live in self._cuts:
                    return SourceClass.CUT_BY_CONFIG
                if live and length > live and live in self._layer_counts:
                    return SourceClass.BEYOND_CONFIG
        return None


def _class_patterns(model: ModelFacts, attribute: str) -> re.Pattern[str] | None:
    """The ignore patterns of all classes of the model as one expression; those that cannot be read are left out."""
    patterns = {pattern: None for declaration in model.declarations for pattern in getattr(declaration, attribute)}
    good = [pattern for pattern in patterns if _compiles(pattern)]
    return re.compile("|".join(f"(?:{pattern})" for pattern in good)) if good else None


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


_OLD_BUFFER = re.compile(r"(^|[._])(inv_freq|position_ids|masked_bias)$")
_OLD_MASK = re.compile(r"(^|\.)(attn|attention)\.bias$")


def _is_old_buffer(key: str, entry: EntryFacts | None) -> bool:
    """Whether old checkpoints stored the key as a derived buffer: rotary tables, positions, causal masks."""
    if _OLD_BUFFER.search(key):
        return True
    # A causal mask has four dimensions; a bias of that name that is a vector is a real bias.
    return bool(_OLD_MASK.search(key)) and (entry is None or len(entry.shape) == 4)


class _Heads:
    """
    Tells whether a name belongs to a head, where checkpoint and live model are of different classes.

    Of the same class, a head that is not stored (or not live) is a defect like any other. So it is when the checkpoint
    does not fill the base: then it is of another architecture, and what finds no place in it is no head.
    """

    def __init__(self, facts: Facts, model: ModelFacts, filled: Evidence) -> None:
        stored_config = facts.checkpoint.config if facts.checkpoint else None
        named = architectures_of(stored_config) or model.architectures
        root = root_declaration(model)
        live_type = root.qualified_type if root is not None and is_adapter(model) else model.qualified_type
        other_class = bool(named) and live_type.rpartition(".")[2] not in named
        self._prefix = f"{root.base_model_prefix}." if root else "."
        names = list(model.state_dict_keys())
        if is_adapter(model):
            names = [name for name in names if not may_be_adapters(name)]
        self._children = {without_adapter(name).partition(".")[0] for name in names}
        self._filled = _is_filled(self._base(names), filled)
        self._stored = other_class and root is not None and root.base_model_prefix != "" and self._filled
        self._live = self._stored and root is not None and root.base_model_present
        heads = facts.plan.heads if facts.plan else None
        self._compared = heads is not None
        self._new = frozenset(heads.new) if heads else frozenset()
        self._lacking = frozenset(heads.lacking) if heads else frozenset()
        self._unused = frozenset(heads.unused) if heads else frozenset()

    def _base(self, names: Iterable[str]) -> list[str]:
        """Return the names of the base; all of a model that is the base itself."""
        names = list(names)
        return [name for name in names if without_adapter(name).startswith(self._prefix)] or names

    def is_new(self, name: str) -> bool:
        """Whether the live name belongs to a head that the checkpoint's class does not have."""
        name = without_adapter(name)
        if name in self._lacking:
            return False
        if name in self._new:
            return self._filled
        return self._live and not name.startswith(self._prefix)

    def is_unused(self, key: str) -> bool:
        """Whether the stored key belongs to a head that the live class does not have."""
        if self._compared:
            return self._filled and key in self._unused
        return self._stored and not key.startswith(self._prefix) and key.partition(".")[0] not in self._children


def _is_filled(names: Sequence[str], filled: Evidence) -> bool:
    """Whether at least half of the live names have a source."""
    return 2 * sum(map(filled.has, names)) >= len(names)
