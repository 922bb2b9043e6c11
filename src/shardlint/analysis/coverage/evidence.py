"""What tells whether the checkpoint filled a live name: a load report, a load plan, or the headers."""

from __future__ import annotations

import re

from ...facts import LoadFacts, ModelFacts, PlanFacts, TensorPlan
from ..keys import KeyResolver
from ..wrapper_names import without_adapter
from .model import TargetClass


class Evidence:
    """Tells of a live name whether the checkpoint filled it, and how."""

    def has(self, name: str) -> bool:
        """Whether the checkpoint filled the live name."""
        raise NotImplementedError

    def how(self, name: str) -> TargetClass:
        """In which way it filled the live name, of which `has` is true."""
        raise NotImplementedError


class HeaderEvidence(Evidence):
    """What headers tell: a name is filled when a key stands for it."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def has(self, name: str) -> bool:
        """Whether the checkpoint filled the live name."""
        return name in self._names

    def how(self, name: str) -> TargetClass:
        """In which way it filled the live name, of which `has` is true."""
        return TargetClass.DIRECT_LOAD


class ReportEvidence(Evidence):
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
        """Whether the checkpoint filled the live name."""
        if name in self._missing:
            return False
        return self._loaded is None or name in self._loaded or name in self._mismatched

    def how(self, name: str) -> TargetClass:
        """In which way it filled the live name, of which `has` is true."""
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


class PlanEvidence(Evidence):
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
        """Whether the checkpoint filled the live name."""
        found = self._find(name)
        return found is not None and (found.status not in ("missing", "error") or found.name in self._odd)

    def how(self, name: str) -> TargetClass:
        """In which way it filled the live name, of which `has` is true."""
        found = self._find(name)
        assert found is not None
        if found.status != "loaded":
            return self._STATES.get(found.status, TargetClass.SHAPE_MISMATCH)
        if found.operations:
            return TargetClass.REVERSIBLE_TRANSFORM
        return TargetClass.DIRECT_LOAD if found.sources == (found.name,) else TargetClass.SAME_SHAPE_RENAME
