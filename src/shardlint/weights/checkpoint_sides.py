"""Two checkpoints under names that both share: their own, those without a prefix, or the live names of their model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from ..analysis.wrapper_names import SAVED_PREFIXES
from ..checkpoint.folder import collect_checkpoint
from ..collect.model import model_facts
from ..facts import CheckpointFacts
from ..introspect.walk import walk
from ..loading.loader import PlanUnknownError
from ..loading.meta_model import build_meta_model
from ..target import Fusion
from .forward import forward
from .fusions import fused
from .same_values import same_values
from .storage import dcp
from .storage.stored_tensors import TensorSource, sources_of
from .symbolic.tensor import SymbolicTensor

PREFIXES_TRIED = ("", *SAVED_PREFIXES)


@frozen(kw_only=True)
class Side:
    """
    One checkpoint: its tensors by the names that both sides share, what they read, and what is left out and why.

    `renamed` are the tensors that the other side has under another name with the same bits, with that name.
    """

    path: Path
    regions: Mapping[str, SymbolicTensor]
    sources: Mapping[str, TensorSource]
    refused: Mapping[str, str] = field(factory=dict)
    excused: Mapping[str, str] = field(factory=dict)
    renamed: tuple[tuple[str, str], ...] = ()


def both_sides(path: Path, reference: Path, fusions: Sequence[Fusion] = ()) -> tuple[Side, Side]:
    """
    Both checkpoints under shared names, those of `path`. Tensors with the same bits are the same one.

    Raises `PlanUnknownError`, `CheckpointError` and `ReadError`.
    """
    one, two = _stored(path), _stored(reference)
    if fusions:
        first, second = fused(one.regions, two.regions, fusions)
        one, two = evolve(one, regions=first), evolve(two, regions=second)
    try:
        return _paired(*_named(one, two))
    except PlanUnknownError:
        sides = _paired(*_both_renamed(one, two, ""))
        if not sides[0].renamed:
            raise
        return sides


def _paired(one: Side, two: Side) -> tuple[Side, Side]:
    """Both sides, with tensors of the same bits under the names of the first."""
    pairs = same_values((one.regions, one.sources), (two.regions, two.sources))
    names = {second: first for first, second in pairs}
    regions = {names.get(name, name): region for name, region in two.regions.items()}
    return evolve(one, renamed=pairs), evolve(two, regions=regions)


def _named(one: _StoredSide, two: _StoredSide) -> tuple[Side, Side]:
    """Both sides by name, or by what the model type makes of their names."""
    stripped = _without_prefix(one, two)
    if stripped is not None:
        return stripped
    facts = next((side.facts for side in (two, one) if side.facts is not None and side.facts.config), None)
    if facts is None:
        best = max(PREFIXES_TRIED, key=lambda prefix: len(_shared(one, two, prefix)))
        if _shared(one, two, best):  # names that only one of them has are told
            return _both_renamed(one, two, best)
        raise PlanUnknownError(
            f"{one.path} and {two.path} use different names, and neither has a config.json that says how they are "
            "related; declare tensors that one of them stores as one as checkpoint.fuse"
        )
    built = build_meta_model(facts)
    if built.quantizer is not None:
        raise PlanUnknownError("checkpoints of quantised models with different names are not compared")
    return _converted(one, built.model), _converted(two, built.model)


@frozen(kw_only=True)
class _StoredSide:
    path: Path
    regions: dict[str, SymbolicTensor]
    sources: Mapping[str, TensorSource]
    refused: Mapping[str, str]
    others: tuple[str, ...] = ()
    facts: CheckpointFacts | None = None


def _stored(path: Path) -> _StoredSide:
    """A checkpoint under its own names."""
    if dcp.is_folder(path):
        folder = dcp.read_folder(path)
        return _StoredSide(
            path=path,
            regions=_leaves(folder.tensors),
            sources=folder.tensors,
            refused=folder.refused,
            others=folder.others,
        )
    facts = collect_checkpoint(path)
    found = sources_of(facts, opaque=True)
    return _StoredSide(
        path=path, regions=_leaves(found.tensors), sources=found.tensors, refused=found.refused, facts=facts
    )


def _leaves(tensors: Mapping[str, TensorSource]) -> dict[str, SymbolicTensor]:
    return {key: SymbolicTensor.leaf(key, item.shape, item.dtype) for key, item in tensors.items()}


def _without_prefix(one: _StoredSide, two: _StoredSide) -> tuple[Side, Side] | None:
    """Both sides name by name when, but for one prefix of DCP names, they use the same ones."""
    for prefix in PREFIXES_TRIED:
        sides = _both_renamed(one, two, prefix)
        names = [set(side.regions) | set(side.refused) for side in sides]
        if names[0] == names[1] and names[0]:
            return sides
    return None


def _both_renamed(one: _StoredSide, two: _StoredSide, prefix: str) -> tuple[Side, Side]:
    """Both sides with a prefix taken off the names of DCP folders."""
    first, second = (_renamed(side, prefix if side.facts is None else "") for side in (one, two))
    return first, second


def _shared(one: _StoredSide, two: _StoredSide, prefix: str) -> set[str]:
    first, second = _both_renamed(one, two, prefix)
    return set(first.regions) & set(second.regions)


def _renamed(side: _StoredSide, prefix: str) -> Side:
    """The side with a prefix taken off; tensors without it are no part of the model."""
    regions = {name[len(prefix) :]: value for name, value in side.regions.items() if name.startswith(prefix)}
    refused = {name[len(prefix) :]: text for name, text in side.refused.items() if name.startswith(prefix)}
    outside = {name: f"not below {prefix}" for name in side.regions if not name.startswith(prefix)}
    outside |= dict.fromkeys(side.others, "no tensor")
    return Side(path=side.path, regions=regions, sources=side.sources, refused=refused, excused=outside)


def _converted(side: _StoredSide, model: Any) -> Side:
    """The side under the live names of the model, through the conversions of its type."""
    facts = model_facts(walk(model))
    live = {name for tensor in facts.tensors if tensor.in_state_dict for name in tensor.aliases}
    if side.facts is None:
        best = max(PREFIXES_TRIED, key=lambda prefix: len(live & set(_renamed(side, prefix).regions)))
        return _renamed(side, best)
    plan = forward(model, facts, side.facts, cast=False)
    excused = {leftover.key: leftover.reason for leftover in plan.plan.leftovers if leftover.reason != "unexpected"}
    refused = dict(plan.refused) | {name: group.reason for name, group in plan.groups.items()}
    return Side(path=side.path, regions=plan.regions, sources=plan.sources.tensors, refused=refused, excused=excused)


def comparable(one: Side, two: Side, name: str) -> bool:
    """Whether a tensor that both sides have has the same shape and format on both."""
    return tuple(one.regions[name].shape) == tuple(two.regions[name].shape) and formats(one, name) == formats(two, name)


def formats(side: Side, name: str) -> set[str]:
    """The dtypes of a tensor that torch does not have."""
    return {side.sources[key].opaque for key in side.regions[name].sources()}
