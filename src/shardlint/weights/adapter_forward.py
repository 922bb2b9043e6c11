"""The load of an adapter file into the adapter of a live model: names map one to one, values are as stored."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from ..analysis.adapter_files import AdapterPlaces, adapter_places
from ..facts import CheckpointFacts, EntryFacts, LeftoverKey, ModelFacts, PlanFacts, TensorFacts, TensorPlan
from ..loading.loader import PlanUnknownError
from .excuses import Excuses
from .forward import Forward, stored_forward
from .storage.stored_tensors import sources_of

_BASE = "a tensor that this folder of an adapter is not meant to hold"


def forward_of_adapter(model: ModelFacts, checkpoint: CheckpointFacts) -> Forward:
    """
    Follow every element of the adapter that `checkpoint` holds.

    Raises `PlanUnknownError` when the model has no adapter whose keys are known, and `ReadError` for a broken file.
    """
    found = adapter_places(model, checkpoint)
    if found is None:
        raise PlanUnknownError("the folder holds an adapter, and the model has none whose stored keys are known")
    if not checkpoint.entries:
        raise PlanUnknownError("no tensor of the adapter could be read")
    plan = _plan(model, checkpoint, found)
    planned = plan.tensor_by_name()
    computed = frozenset(key for key, name in found.places.items() if name == "")
    others = {name: _BASE for name in model.state_dict_keys() if name not in planned}
    return evolve(stored_forward(plan, sources_of(checkpoint)), excuses=Excuses(live=others), computed=computed)


def _plan(model: ModelFacts, checkpoint: CheckpointFacts, found: AdapterPlaces) -> PlanFacts:
    live = model.tensor_by_name()
    entries = checkpoint.entry_by_key()
    keys = {name: key for key, name in found.wanted.items()}
    filled = found.filled(model)
    keys = {name: key for name, key in keys.items() if name not in filled}
    keys |= {name: key for key, name in found.places.items() if name}
    return PlanFacts(
        loader="PEFT",
        basis="model",
        architecture=model.qualified_type,
        tensors=tuple(_tensor(name, live[name], entries.get(key)) for name, key in keys.items() if name in live),
        leftovers=tuple(_leftovers(found, entries.values())),
    )


def _tensor(name: str, tensor: TensorFacts, entry: EntryFacts | None) -> TensorPlan:
    if entry is None:
        return TensorPlan(name=name, status="missing", shape=tensor.shape, dtype=tensor.dtype)
    same = entry.shape == tensor.shape
    return TensorPlan(
        name=name,
        status="loaded" if same else "mismatched",
        shape=tensor.shape,
        dtype=tensor.dtype,
        sources=(entry.key,),
        files=(entry.file,),
        stored_dtypes=(entry.dtype,),
        converted_shape=None if same else entry.shape,
    )


def _leftovers(found: AdapterPlaces, entries: Iterable[EntryFacts]) -> Iterable[LeftoverKey]:
    for entry in entries:
        if not found.places.get(entry.key):
            yield LeftoverKey(
                key=entry.key,
                file=entry.file,
                dtype=entry.dtype,
                shape=entry.shape,
                renamed=entry.key,
                reason="unexpected",
            )
