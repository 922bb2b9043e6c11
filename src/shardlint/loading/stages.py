"""A checkpoint seen behind a recorded stage of conversions: other keys, other shapes, made of the stored tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from attrs import evolve, frozen

from ..analysis.contract_globs import Exclusions
from ..facts import CheckpointFacts, EntryFacts, LeftoverKey, PlanFacts, TensorPlan
from ..facts.checkpoint import TORCH_DTYPES
from .loader import PlanUnknownError
from .recorded_conversions import Derived, recorded_list, recorded_stages, run_stage

_FORMATS = {name: found for found, name in reversed(TORCH_DTYPES.items())}


@frozen(kw_only=True)
class LoadStages:
    """
    How a live model was loaded, in recorded stages.

    `before` are those that run on the stored keys one after another; `last` is the one that knows the live names, None
    for the mapping of the model type. `recorded` tells that the stages stand on the model.
    """

    before: tuple[tuple[Any, ...], ...] = ()
    last: tuple[Any, ...] | None = None

    @property
    def recorded(self) -> bool:
        """Whether the model carries a record that replaces the mapping of its type."""
        return bool(self.before) or self.last is not None


def load_stages(model: Any, *, pretrained: bool, renames: Sequence[tuple[str, str]] = ()) -> LoadStages:
    """
    The stages that the record on the model says: both stages when they are recorded, else the recorded list.

    For a model of Transformers the recorded list is no stages of its own: its conversions join those of the model type.
    Raises `PlanUnknownError` for half a record, and for declared renamings beside stages.
    """
    stages = recorded_stages(model)
    if stages is None:
        alone = () if pretrained else recorded_list(model)
        return LoadStages(before=(alone,) if alone else ())
    if renames:
        raise PlanUnknownError(
            "the model records its conversions in stages, and checkpoint.renames is declared too: put the renamings "
            "into the base stage, where their order is known"
        )
    if pretrained:
        return LoadStages(before=(stages.base,), last=stages.replacement)
    return LoadStages(before=(stages.base, stages.replacement))


@frozen(kw_only=True)
class StagedCheckpoint:
    """The checkpoint behind some stages. `made` has its tensors by their keys there."""

    checkpoint: CheckpointFacts
    made: Mapping[str, Derived]


def staged_checkpoint(
    checkpoint: CheckpointFacts, stages: Sequence[Sequence[Any]], model: Any, leaf: Callable[[EntryFacts], Any]
) -> StagedCheckpoint:
    """Run the stages over `leaf(entry)` for every stored key. Raises `PlanUnknownError`."""
    stored = {entry.key: entry for entry in checkpoint.entries}
    made = {key: Derived(tensor=leaf(entry), keys=(key,)) for key, entry in stored.items()}
    for stage in stages:
        again = run_stage(stage, {key: item.tensor for key, item in made.items()}, model)
        made = {name: _joined(item, made) for name, item in again.items()}
    return StagedCheckpoint(checkpoint=with_tensors(checkpoint, made), made=made)


def _joined(item: Derived, before: Mapping[str, Derived]) -> Derived:
    keys = tuple(dict.fromkeys(key for name in item.keys for key in before[name].keys))
    operations = tuple(name for key in item.keys[:1] for name in before[key].operations) + item.operations
    return Derived(tensor=item.tensor, keys=keys, operations=operations)


def with_tensors(checkpoint: CheckpointFacts, made: Mapping[str, Derived]) -> CheckpointFacts:
    """The facts of a checkpoint that stores these tensors under these keys instead of its own."""
    files = {entry.key: entry.file for entry in checkpoint.entries}
    entries = tuple(
        EntryFacts(
            key=key,
            dtype=_FORMATS.get(str(item.tensor.dtype).removeprefix("torch."), "U8"),
            shape=tuple(int(size) for size in item.tensor.shape),
            file=next((files[name] for name in item.keys if name in files), ""),
            begin=0,
            end=0,
        )
        for key, item in made.items()
    )
    return evolve(checkpoint, entries=entries)


def in_stored_keys(
    plan: PlanFacts, found: StagedCheckpoint, checkpoint: CheckpointFacts, exclusions: Exclusions | None = None
) -> PlanFacts:
    """The plan of the checkpoint behind its stages, told in the keys that are stored."""
    stored = {entry.key: entry for entry in checkpoint.entries}
    exclusions = exclusions or Exclusions()
    leftovers = tuple(
        _leftover(leftover, stored[key], exclusions)
        for leftover in plan.leftovers
        for key in found.made[leftover.key].keys
    )
    tensors = tuple(_in_stored_keys(tensor, found.made) for tensor in plan.tensors)
    return evolve(plan, tensors=tensors, leftovers=leftovers)


def _leftover(leftover: LeftoverKey, entry: EntryFacts, exclusions: Exclusions) -> LeftoverKey:
    stored = evolve(leftover, key=entry.key, file=entry.file, dtype=entry.dtype, shape=entry.shape)
    if stored.reason != "unexpected" or not (glob := exclusions.of_key(entry.key)):
        return stored
    return evolve(stored, reason="excluded", pattern=glob)


def _in_stored_keys(tensor: TensorPlan, made: Mapping[str, Derived]) -> TensorPlan:
    keys = tuple(dict.fromkeys(key for source in tensor.sources for key in made[source].keys))
    before = tuple(name for source in tensor.sources[:1] for name in made[source].operations)
    return msgspec.structs.replace(tensor, sources=keys, operations=(*before, *tensor.operations))
