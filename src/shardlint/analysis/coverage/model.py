"""Coverage as a value: the classes of live and of stored keys, and what is left without an explanation."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

from attrs import field, frozen

from ...facts import FrozenDict


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
    OTHER_RANK = "other_rank"  # another stage of the pipeline takes it


class CoverageStatus(enum.Enum):
    """COMPLETE or INCOMPLETE where there was something to compare, else NOT_LOADED."""

    COMPLETE = "COMPLETE"
    INCOMPLETE = "INCOMPLETE"
    NOT_LOADED = "NOT_LOADED"


@frozen(kw_only=True)
class Coverage:
    """
    Every live key with its class, and every stored key without a place with its class.

    `basis` is `load-report`, `plan` or `headers`; `missing` and `unexpected` are what nothing explains. `reason` says
    why nothing could be compared (NOT_LOADED). `unread_parts` are parts of the checkpoint that the folder names and
    that were not read: with one of them coverage is not complete.
    """

    status: CoverageStatus
    basis: str
    targets: Mapping[str, TargetClass] = field(factory=dict)
    sources: Mapping[str, SourceClass] = field(factory=dict)
    reason: str = ""
    unread_parts: tuple[str, ...] = ()

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
                "unread_parts": self.unread_parts,
            }
        )


def iter_unexplained(coverage: Coverage) -> Iterator[tuple[str, TargetClass | SourceClass]]:
    """Every missing target, then every unexpected source, with its class: what a rule has to say something about."""
    said = (TargetClass.UNSUPPORTED_MISSING_TARGET, TargetClass.NEW_HEAD)
    yield from ((key, kind) for key, kind in coverage.targets.items() if kind in said)
    told = (SourceClass.UNSUPPORTED_ARCHITECTURAL_MISMATCH, SourceClass.UNUSED_HEAD, SourceClass.BEYOND_CONFIG)
    yield from ((key, kind) for key, kind in coverage.sources.items() if kind in told)
