"""The load plan: every live tensor with its sources, every stored key with its live tensor or a reason."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from ..analysis.contract_globs import Exclusions
from ..facts import (
    CheckpointFacts,
    EntryFacts,
    LeftoverKey,
    LoadRemark,
    PlanFacts,
    RoundTrip,
    TensorPlan,
    TiePlan,
)
from ..introspect.attributes import gc_paused
from .loader import Loader, PlannedTarget
from .remarks import INTEGERS, integer_cast, numbering, odd_shapes

_CODED = INTEGERS | {"F4"}
"""Stored dtypes that are looked at one by one: integers cast into numbers, pairs whose shape in torch is another."""
_DERIVED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|position_ids|attn\.masked_bias)$")


@frozen(kw_only=True)
class LiveModel:
    """The tensors of `state_dict()` by name, and the buffers that are not in it."""

    tensors: Mapping[str, PlannedTarget]
    unsaved_buffers: frozenset[str] = frozenset()
    architecture: str = ""
    basis: str = "model"


@frozen
class _SourceGroup:
    """All keys that go to one first name by conversion."""

    conversion: Any
    parts: list[tuple[str, EntryFacts]] = field(factory=list)


def make_plan(
    rules: Loader, live: LiveModel, checkpoint: CheckpointFacts, exclusions: Exclusions | None = None
) -> PlanFacts:
    """Plan loading `checkpoint` into `live` by `rules`. Raises `PlanUnknownError` when the rules cannot be followed."""
    with gc_paused():  # nothing but new objects that stay: the collector would look at all of them again and again
        return _Planner(rules, live, checkpoint, exclusions or Exclusions()).plan()


def loaded_shape(entry: EntryFacts) -> tuple[int, ...]:
    """The shape that a stored tensor has in torch, in elements: F4 is read as pairs along the last dimension."""
    if entry.dtype != "F4" or not entry.shape or entry.shape[-1] % 2:
        return entry.shape
    return (*entry.shape[:-1], entry.shape[-1] // 2)


class _Singles(dict[str, tuple[str]]):
    """Tuples of one string, one object for each string."""

    def __missing__(self, text: str) -> tuple[str]:
        self[text] = (text,)
        return self[text]


class _Planner:
    def __init__(self, rules: Loader, live: LiveModel, checkpoint: CheckpointFacts, exclusions: Exclusions) -> None:
        self.rules, self.live, self.checkpoint, self.exclusions = rules, live, checkpoint, exclusions
        self.remarks: list[LoadRemark] = []
        self.tensors: dict[str, TensorPlan] = {}
        self.leftovers: list[LeftoverKey] = []
        self.mixed: dict[str, list[str]] = {}
        self.quantised = rules.quantised()

    def plan(self) -> PlanFacts:
        stored = {entry.key: entry for entry in self.checkpoint.entries}  # of a key in two files the last file wins
        keys = self.rules.ordered(list(stored))
        ignored = self.rules.ignored()
        groups = self._take(keys, stored, _combined(ignored.unexpected))
        for name, group in groups.items():
            self._load_converted(name, group)
        for name, extra in self.mixed.items():
            self._mixed(name, extra)
        ties = self._tie()
        self._missing(_combined(ignored.missing))
        self.remarks += self.rules.remarks()
        conversions = self.rules.conversions()
        trips, checked = self._round_trips() if conversions else ((), 0)
        return PlanFacts(
            loader=self.rules.title,
            basis=self.live.basis,
            architecture=self.live.architecture,
            tensors=self._in_order(),
            leftovers=tuple(self.leftovers),
            remarks=tuple(self.remarks),
            ties=ties,
            round_trips=tuple(trips),
            round_trips_checked=checked,
            conversions=conversions,
            unread=tuple(_unread(self.checkpoint)),
            quantization=self.rules.quantization,
        )

    def _in_order(self) -> tuple[TensorPlan, ...]:
        if list(self.tensors) == list(self.live.tensors):
            return tuple(self.tensors.values())
        return tuple([self.tensors[name] for name in self.live.tensors])

    def _round_trips(self) -> tuple[Sequence[RoundTrip], int]:
        sources = {tensor.name: tensor.sources[0] for tensor in self.tensors.values() if tensor.status == "loaded"}
        return self.rules.round_trips(sources, self.live.tensors)

    def _take(
        self, keys: Sequence[str], stored: Mapping[str, EntryFacts], ignored: Sequence[tuple[str, re.Pattern[str]]]
    ) -> dict[str, _SourceGroup]:
        """Load what is merely renamed, and return the groups of keys that are converted."""
        live, tensors = self.live.tensors, self.tensors
        routes = self.rules.routes(keys, live)
        recipes = routes.recipes
        if not recipes and self._fits(keys, routes.names, stored):
            return {}
        groups: dict[str, _SourceGroup] = {}
        for position, (key, name) in enumerate(zip(keys, routes.names, strict=True)):
            entry, tensor = stored[key], live.get(name)
            if tensor is None:
                self.leftovers.append(self._leftover(entry, name, ignored))
            elif recipe := recipes.get(position):
                if name in tensors:
                    self.mixed.setdefault(name, []).append(key)
                else:
                    group = groups.get(name) or groups.setdefault(name, _SourceGroup(recipe.conversion))
                    group.parts.append((recipe.pattern, entry))
            elif name in tensors:
                first = tensors[name].sources[0]
                self._remark("duplicate-source", name, (first, key), f"{first} fills it, {key} is dropped")
            elif name in groups:
                self.mixed.setdefault(name, []).append(key)
            else:
                tensors[name] = self._plain(name, tensor, entry)
        return groups

    def _fits(self, keys: Sequence[str], names: Sequence[str], stored: Mapping[str, EntryFacts]) -> bool:
        """Load everything at once when each live tensor has exactly one key, as most checkpoints have."""
        live = self.live.tensors
        found = dict(zip(names, map(stored.__getitem__, keys), strict=True)) if len(names) == len(live) else {}
        if found.keys() != live.keys():
            return False
        files, dtypes = _Singles(), _Singles()
        plans = [
            TensorPlan(
                name=name,
                status="loaded",
                shape=tensor.shape,
                dtype=tensor.dtype,
                sources=(entry.key,),
                files=files[entry.file],
                stored_dtypes=dtypes[entry.dtype],
            )
            if (entry := found[name]).shape == tensor.shape and entry.dtype not in _CODED and name not in self.quantised
            else self._plain(name, tensor, entry)
            for name, tensor in live.items()
        ]
        self.tensors = dict(zip(live, plans, strict=True))
        return True

    def _mixed(self, name: str, extra: Sequence[str]) -> None:
        first = self.tensors[name].sources[0] if name in self.tensors else ""
        more = "1 more key gives" if len(extra) == 1 else f"{len(extra)} more keys give"
        detail = f"{more} it in another form: {', '.join(extra[:3])}"
        self._remark("mixed-group", name, (first, *extra), detail)

    def _remark(self, kind: str, name: str, keys: tuple[str, ...], detail: str) -> None:
        self.remarks.append(LoadRemark(kind=kind, name=name, keys=keys, detail=detail))

    def _leftover(self, entry: EntryFacts, name: str, ignored: Sequence[tuple[str, re.Pattern[str]]]) -> LeftoverKey:
        reason, pattern = "unexpected", ""
        if found := _first(ignored, name):
            reason, pattern = "ignored", found
        elif found := self.exclusions.of_key(entry.key):
            reason, pattern = "excluded", found
        elif name in self.live.unsaved_buffers:
            reason = "non-persistent"
        elif _DERIVED.search(name):
            reason = "derived"
        return LeftoverKey(
            key=entry.key,
            file=entry.file,
            dtype=entry.dtype,
            shape=entry.shape,
            renamed=name,
            reason=reason,
            pattern=pattern,
        )

    def _plain(self, name: str, tensor: PlannedTarget, entry: EntryFacts) -> TensorPlan:
        if name in self.quantised:
            return TensorPlan(
                name=name,
                status="loaded",
                shape=tensor.shape,
                dtype=tensor.dtype,
                sources=(entry.key,),
                files=(entry.file,),
                operations=("Quantize",),
                stored_dtypes=(entry.dtype,),
                reason="the shape was not followed through the operations",
            )
        if entry.dtype in INTEGERS and (detail := integer_cast(entry, tensor.dtype)):
            self._remark("integer-cast", name, (entry.key,), detail)
        shape = loaded_shape(entry)
        return TensorPlan(
            name=name,
            status="loaded" if shape == tensor.shape else "mismatched",
            shape=tensor.shape,
            dtype=tensor.dtype,
            sources=(entry.key,),
            files=(entry.file,),
            stored_dtypes=(entry.dtype,),
            converted_shape=None if shape == tensor.shape else shape,
        )

    def _load_converted(self, name: str, group: _SourceGroup) -> None:
        recipe = group.conversion
        converted = self.rules.convert(name, recipe, group.parts, self.live.tensors[name].dtype)
        entries = [entry for _, entry in group.parts]
        for detail, keys in numbering(group.parts):
            self._remark("numbering", name, keys, detail)
        error = self._failure(name, group.parts, converted.error) if converted.error else ""
        for target, shape in ({name: None} if error else converted.shapes).items():
            tensor = self.live.tensors.get(target)
            if tensor is None:
                continue
            if target in self.tensors:
                self._remark("double-write", target, self.tensors[target].sources, "two conversions write it")
            status = "error" if error else "loaded" if shape in (None, tensor.shape) else "mismatched"
            self.tensors[target] = TensorPlan(
                name=target,
                status=status,
                shape=tensor.shape,
                dtype=tensor.dtype,
                sources=tuple(entry.key for entry in entries),
                files=tuple(sorted({entry.file for entry in entries})),
                operations=self.rules.operations(recipe),
                stored_dtypes=tuple(sorted({entry.dtype for entry in entries})),
                converted_shape=shape if status == "mismatched" else None,
                reason=error or ("the shape was not followed through the operations" if shape is None else ""),
            )

    def _failure(self, name: str, parts: Sequence[tuple[str, EntryFacts]], error: str) -> str:
        """Say why a conversion of `parts` fails: by the shapes that do not go together, else in the words of torch."""
        odd = tuple(odd_shapes(parts))
        for detail, keys in odd:
            self._remark("odd-shape", name, keys, detail)
        if odd:
            return "; ".join(detail for detail, _ in odd)
        shapes = dict.fromkeys((pattern, entry.shape) for pattern, entry in parts)
        shown = ", ".join(f"{pattern} {list(shape)}" for pattern, shape in list(shapes)[:6])
        return f"{error} of {shown}"

    def _tie(self) -> tuple[TiePlan, ...]:
        """Apply the declared ties as Transformers does, then share among the aliases of one live tensor."""
        declared = [(name, source) for name, source in self.rules.ties().items() if name in self.live.tensors]
        found = self._shared_and_stored_twice({*declared, *((source, name) for name, source in declared)})
        for position, (name, source) in enumerate(declared):
            both = name in self.tensors and source in self.tensors
            found.append(TiePlan(name=name, source=source, both_stored=both))
            if both or source not in self.live.tensors:
                continue
            if name in self.tensors:
                self._share(source, name)
            elif source in self.tensors:
                self._share(name, source)
            else:
                later = (
                    other for other, origin in declared[position + 1 :] if origin == source and other in self.tensors
                )
                if (other := next(later, None)) is not None:
                    self._share(name, other)
        if len(self.tensors) < len(self.live.tensors):
            self._share_aliases()
        return tuple(found)

    def _shared_and_stored_twice(self, declared: Container[tuple[str, str]]) -> list[TiePlan]:
        """The names of one live tensor that have a source each, though no class declares them tied."""
        first: dict[str, str] = {}
        found = []
        for name in self.tensors:
            source = first.setdefault(self.live.tensors[name].identity, name)
            if source != name and (name, source) not in declared:
                found.append(TiePlan(name=name, source=source, both_stored=True))
        return found

    def _share_aliases(self) -> None:
        filled: dict[str, str] = {}
        for name, tensor in self.live.tensors.items():
            if name in self.tensors:
                filled.setdefault(tensor.identity, name)
        for name, tensor in self.live.tensors.items():
            if name not in self.tensors and tensor.identity in filled:
                self._share(name, filled[tensor.identity])

    def _share(self, name: str, source: str) -> None:
        tensor, origin = self.live.tensors[name], self.tensors[source]
        if origin.status not in ("loaded", "tied"):
            return
        self.tensors[name] = TensorPlan(
            name=name,
            status="tied",
            shape=tensor.shape,
            dtype=origin.dtype,
            sources=origin.sources,
            files=origin.files,
            operations=origin.operations,
            stored_dtypes=origin.stored_dtypes,
            tied_to=source,
        )

    def _missing(self, ignored: Sequence[tuple[str, re.Pattern[str]]]) -> None:
        if len(self.tensors) == len(self.live.tensors):
            return
        for name, tensor in self.live.tensors.items():
            if name in self.tensors:
                continue
            status, pattern = "missing", ""
            if found := _first(ignored, name):
                status, pattern = "missing-ignored", found
            elif found := self.exclusions.of_tensor(name):
                status, pattern = "missing-excluded", found
            self.tensors[name] = TensorPlan(
                name=name, status=status, shape=tensor.shape, dtype=tensor.dtype, reason=pattern
            )


def _unread(checkpoint: CheckpointFacts) -> list[str]:
    """Return the files that count and whose header was not read. Those of a DCP folder have none."""
    if checkpoint.format == "dcp":
        return []
    read = {file.name for file in checkpoint.files if file.opened}
    counted = {file.name for file in checkpoint.files if file.counts}
    if checkpoint.index is not None:
        counted |= set(checkpoint.index.weight_map.values())
    absent = {problem.file for problem in checkpoint.problems if problem.kind in ("missing", "escapes-folder")}
    return sorted((counted | {name for name in absent if name.endswith(".safetensors")}) - read)


def _combined(patterns: Sequence[str]) -> list[tuple[str, re.Pattern[str]]]:
    return [(pattern, re.compile(pattern)) for pattern in patterns]


def _first(patterns: Sequence[tuple[str, re.Pattern[str]]], name: str) -> str:
    return next((text for text, pattern in patterns if pattern.search(name)), "")
