"""
Checkpoint coverage: what became of every live key and of every stored key that found no place. Public; no torch.

`coverage` reads the retained load report; `planned_coverage` the load plan; `stored_coverage` compares the headers of a
checkpoint with the live names, for models whose checkpoint keys are the names themselves.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from attrs import evolve, field, frozen

from ..facts import (
    CheckpointFacts,
    EntryFacts,
    Facts,
    FrozenDict,
    LoadFacts,
    ModelCounts,
    ModelFacts,
    PlanFacts,
    Section,
    TensorFacts,
    TensorPlan,
)
from ..rule import NotEvaluated
from .contract_globs import exclusions_of
from .keys import (
    KeyResolver,
    config_cuts,
    identity_reason,
    is_adapter,
    layer_counts,
    list_lengths,
    root_declaration,
    unread_files,
    without_adapter,
)
from .ties import wanted_pairs


class TargetClass(enum.Enum):
    """What became of a key of `state_dict()`."""

    DIRECT_LOAD = "direct_load"
    REVERSIBLE_TRANSFORM = "reversible_transform"
    SAME_SHAPE_RENAME = "same_shape_rename"
    TRAINING_ONLY_INITIALIZATION = "training_only_initialization"
    UNSUPPORTED_MISSING_TARGET = "unsupported_missing_target"
    ALIAS_OR_NON_PERSISTENT = "alias_or_non_persistent"
    NEW_HEAD = "new_head_initialization"
    IGNORED_BY_CLASS = "ignored_by_class"
    ADAPTER = "adapter_initialization"
    SHAPE_MISMATCH = "shape_mismatch"


class SourceClass(enum.Enum):
    """What a stored key is that no live tensor took."""

    INFERENCE_ONLY_EXCLUSION = "inference_only_exclusion"
    UNSUPPORTED_ARCHITECTURAL_MISMATCH = "unsupported_architectural_mismatch"
    IGNORED_BY_CLASS = "ignored_by_class"
    DERIVED_BUFFER = "derived_buffer"
    UNUSED_HEAD = "unused_head"
    CUT_BY_CONFIG = "cut_by_config"
    BEYOND_CONFIG = "beyond_config"
    OTHER_STATE = "other_state"


class CoverageStatus(enum.Enum):
    """COMPLETE or INCOMPLETE where there was something to compare, else NOT_LOADED."""

    COMPLETE = "COMPLETE"
    INCOMPLETE = "INCOMPLETE"
    NOT_LOADED = "NOT_LOADED"


@frozen(kw_only=True)
class Coverage:
    """
    Every live key with its class, and every stored key without a place with its class.

    `basis` is `load-report`, `plan` or `headers`; `missing` and `unexpected` are what nothing explains.
    """

    status: CoverageStatus
    basis: str
    targets: Mapping[str, TargetClass] = field(factory=dict)
    sources: Mapping[str, SourceClass] = field(factory=dict)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Live keys that nothing filled and nothing excuses, in walk order."""
        wanted = TargetClass.UNSUPPORTED_MISSING_TARGET
        return tuple(key for key, kind in self.targets.items() if kind is wanted)

    @cached_property
    def unexpected(self) -> tuple[str, ...]:
        """Stored keys that no live tensor took and nothing excuses."""
        wanted = SourceClass.UNSUPPORTED_ARCHITECTURAL_MISMATCH
        return tuple(key for key, kind in self.sources.items() if kind is wanted)

    def counts(self) -> dict[str, dict[str, int]]:
        """How many targets and sources there are of each class; classes without any are left out."""
        return {
            "targets": dict(Counter(kind.value for kind in self.targets.values())),
            "sources": dict(Counter(kind.value for kind in self.sources.values())),
        }

    def as_mapping(self) -> FrozenDict:
        """The coverage as plain values for a report: status, basis, counts, and what is missing or unexpected."""
        return FrozenDict(
            {
                "status": self.status.value,
                "basis": self.basis,
                "counts": self.counts(),
                "missing": self.missing,
                "unexpected": self.unexpected,
            }
        )


def coverage(facts: Facts) -> Coverage | None:
    """
    Return the coverage that the retained load report tells of; None without model facts.

    Without a load report the status is NOT_LOADED and nothing is classified.
    """
    if facts.model is None:
        return None
    report = retained_report(facts)
    if report is None:
        return Coverage(status=CoverageStatus.NOT_LOADED, basis="load-report")
    return _classified(facts, facts.model, _Reported(facts.model, report), "load-report", report.unexpected)


def retained_report(facts: Facts) -> LoadFacts | None:
    """Return the load report that somebody retained; None when at most the recorded conversions are known."""
    return facts.load if facts.load is not None and facts.load.reported else None


def stored_coverage(facts: Facts) -> Coverage:
    """
    Return the coverage that the headers of the checkpoint show.

    Raises `NotEvaluated` where stored keys and live names cannot be compared one by one, and where files that count
    could not be read.
    """
    reason = identity_reason(facts)
    if reason or facts.model is None or facts.checkpoint is None:
        raise NotEvaluated(reason or "no model or no checkpoint to compare")
    if unread := unread_files(facts.checkpoint):
        raise NotEvaluated(f"no header could be read of {', '.join(unread[:3])}")
    resolver = KeyResolver(facts.model)
    filled: set[str] = set()
    placeless: list[str] = []
    for entry in facts.checkpoint.entries:
        name = resolver.live_name(entry.key)
        if name is None:
            placeless.append(entry.key)
        else:
            filled.add(name)
    return _classified(facts, facts.model, _Stored(facts.model, filled), "headers", placeless)


def planned_coverage(facts: Facts) -> Coverage:
    """
    Return the coverage that the load plan shows, with or without a live model.

    Raises `NotEvaluated` without a plan, and where files that count could not be read.
    """
    plan = facts.plan
    if plan is None:
        raise NotEvaluated(facts.why_absent(Section.PLAN))
    if plan.unread:
        raise NotEvaluated(f"no header could be read of {', '.join(plan.unread[:3])}")
    model = facts.model or _planned_model(plan, facts.checkpoint)
    leftovers = {leftover.key: leftover for leftover in plan.leftovers}
    open_keys = [key for key, item in leftovers.items() if item.reason == "unexpected"]
    found = _classified(facts, model, _Planned(plan), "plan", open_keys)
    settled = {key: _SETTLED[item.reason] for key, item in leftovers.items() if item.reason in _SETTLED}
    return evolve(found, sources={key: settled.get(key) or found.sources[key] for key in leftovers})


_SETTLED = {
    "ignored": SourceClass.IGNORED_BY_CLASS,
    "excluded": SourceClass.INFERENCE_ONLY_EXCLUSION,
    "non-persistent": SourceClass.DERIVED_BUFFER,
    "derived": SourceClass.DERIVED_BUFFER,
    "other-state": SourceClass.OTHER_STATE,
}


def _planned_model(plan: PlanFacts, checkpoint: CheckpointFacts | None) -> ModelFacts:
    """Return what the plan knows of the architecture, as the facts of a model."""
    tensors = tuple(
        TensorFacts(
            fqn=tensor.name,
            aliases=(tensor.name,),
            kind="parameter",
            shape=tensor.shape,
            dtype=tensor.dtype,
            device="meta",
            requires_grad=False,
            is_meta=True,
        )
        for tensor in plan.tensors
    )
    return ModelFacts(
        qualified_type=plan.architecture,
        tensors=tensors,
        config=checkpoint.config if checkpoint else None,
        counts=ModelCounts(modules=0, parameters=len(tensors), buffers=0, parameter_elements=0),
    )


def _classified(facts: Facts, model: ModelFacts, filled: _Filled, basis: str, placeless: Iterable[str]) -> Coverage:
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
    incomplete = (
        TargetClass.UNSUPPORTED_MISSING_TARGET in targets.values()
        or SourceClass.UNSUPPORTED_ARCHITECTURAL_MISMATCH in sources.values()
    )
    status = CoverageStatus.INCOMPLETE if incomplete else CoverageStatus.COMPLETE
    return Coverage(status=status, basis=basis, targets=targets, sources=sources)


class _Filled:
    """Tells of a live name whether the checkpoint filled it, and how."""

    def has(self, name: str) -> bool:
        raise NotImplementedError

    def how(self, name: str) -> TargetClass:
        raise NotImplementedError


class _Stored(_Filled):
    """What headers tell: a name is filled when a key stands for it."""

    def __init__(self, model: ModelFacts, names: set[str]) -> None:
        self._names = names

    def has(self, name: str) -> bool:
        return name in self._names

    def how(self, name: str) -> TargetClass:
        return TargetClass.DIRECT_LOAD


class _Reported(_Filled):
    """What a load report tells: loaded when it says so, or (when it lists no loaded keys) when not missing."""

    def __init__(self, model: ModelFacts, load: LoadFacts) -> None:
        resolver = KeyResolver(model)
        self._missing = set(load.missing)
        self._mismatched = {item.key for item in load.mismatched}
        self._loaded = None if load.loaded is None else {resolver.live_name(key) or key for key in load.loaded}
        self._conversions = [
            (
                re.compile("|".join(_target_pattern(target) for target in conversion.targets)),
                bool(conversion.operations),
            )
            for conversion in load.conversions
            if conversion.targets
        ]
        self._patterns: dict[str, TargetClass] = {}

    def has(self, name: str) -> bool:
        if name in self._missing:
            return False
        return self._loaded is None or name in self._loaded or name in self._mismatched

    def how(self, name: str) -> TargetClass:
        if name in self._mismatched:
            return TargetClass.SHAPE_MISMATCH
        pattern = re.sub(r"[0-9]+", "0", name)
        if pattern not in self._patterns:
            self._patterns[pattern] = self._conversion(pattern)
        return self._patterns[pattern]

    def _conversion(self, name: str) -> TargetClass:
        kinds = {computes for target, computes in self._conversions if target.search(name)}
        if True in kinds:
            return TargetClass.REVERSIBLE_TRANSFORM
        return TargetClass.SAME_SHAPE_RENAME if kinds else TargetClass.DIRECT_LOAD


def _target_pattern(target: str) -> str:
    """A regular expression for the live names that a target stands for: `*` and back-references are wild."""
    parts = re.split(r"(\\[0-9]|\*)", target.strip("^$"))
    return "".join("[^.]+" if index % 2 else re.escape(part) for index, part in enumerate(parts))


class _Planned(_Filled):
    """What a load plan tells. Of an adapted model it knows the tensors of the base, by the names of the base."""

    _STATES = {
        "mismatched": TargetClass.SHAPE_MISMATCH,
        "tied": TargetClass.ALIAS_OR_NON_PERSISTENT,
        "missing-ignored": TargetClass.IGNORED_BY_CLASS,
        "missing-excluded": TargetClass.TRAINING_ONLY_INITIALIZATION,
    }

    def __init__(self, plan: PlanFacts) -> None:
        self._tensors = plan.tensor_by_name()
        self._odd = {remark.name for remark in plan.remarks if remark.kind == "odd-shape"}

    def _find(self, name: str) -> TensorPlan | None:
        return self._tensors.get(name) or self._tensors.get(without_adapter(name))

    def has(self, name: str) -> bool:
        found = self._find(name)
        return found is not None and (found.status not in ("missing", "error") or found.name in self._odd)

    def how(self, name: str) -> TargetClass:
        found = self._find(name)
        assert found is not None
        if found.status != "loaded":
            return self._STATES.get(found.status, TargetClass.SHAPE_MISMATCH)
        if found.operations:
            return TargetClass.REVERSIBLE_TRANSFORM
        return TargetClass.DIRECT_LOAD if found.sources == (found.name,) else TargetClass.SAME_SHAPE_RENAME


class _Targets:
    """Classifies live keys."""

    def __init__(self, facts: Facts, model: ModelFacts, filled: _Filled, heads: _Heads) -> None:
        self._filled = filled
        self._exclusions = exclusions_of(facts.contract)
        self._ignored = _class_patterns(model, "ignore_on_load_missing")
        self._new_head = heads.is_new
        self._adapter = is_adapter(model)
        self._partner: dict[str, list[str]] = {}
        for target, source in wanted_pairs(model).items():
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
        if self._adapter and _ADAPTER.search(name):
            return TargetClass.ADAPTER
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
        for name in self._resolver.variants(key):
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


_ADAPTER = re.compile(r"\.(lora_|modules_to_save|ia3_|hada_|lokr_|oft_|vera_|boft_|prompt_|adaption_|adapter)")
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

    def __init__(self, facts: Facts, model: ModelFacts, filled: _Filled) -> None:
        stored_config = facts.checkpoint.config if facts.checkpoint else None
        named = (stored_config.get("architectures") if stored_config else None) or model.architectures
        other_class = bool(named) and model.qualified_type.rpartition(".")[2] not in named
        root = root_declaration(model)
        self._prefix = f"{root.base_model_prefix}." if root else "."
        names = model.state_dict_keys()
        self._children = {name.partition(".")[0] for name in names}
        self._stored = other_class and root is not None and root.base_model_prefix != ""
        self._stored = self._stored and _is_filled(self._base(names), filled)
        self._live = self._stored and root is not None and root.base_model_present

    def _base(self, names: Iterable[str]) -> list[str]:
        """Return the names of the base; all of a model that is the base itself."""
        names = list(names)
        return [name for name in names if name.startswith(self._prefix)] or names

    def is_new(self, name: str) -> bool:
        """Whether the live name belongs to a head that the checkpoint's class does not have."""
        return self._live and not name.startswith(self._prefix)

    def is_unused(self, key: str) -> bool:
        """Whether the stored key belongs to a head that the live class does not have."""
        return self._stored and not key.startswith(self._prefix) and key.partition(".")[0] not in self._children


def _is_filled(names: Sequence[str], filled: _Filled) -> bool:
    """Whether at least half of the live names have a source."""
    return 2 * sum(map(filled.has, names)) >= len(names)


def iter_unexplained(found: Coverage) -> Iterator[tuple[str, TargetClass | SourceClass]]:
    """Every missing target, then every unexpected source, with its class: what a rule has to say something about."""
    said = (TargetClass.UNSUPPORTED_MISSING_TARGET, TargetClass.NEW_HEAD)
    yield from ((key, kind) for key, kind in found.targets.items() if kind in said)
    told = (SourceClass.UNSUPPORTED_ARCHITECTURAL_MISMATCH, SourceClass.UNUSED_HEAD, SourceClass.BEYOND_CONFIG)
    yield from ((key, kind) for key, kind in found.sources.items() if kind in told)
