"""
The export: would saving the live model give the checkpoint again, and would that export be loaded again?

The reverse conversions are run as `save_pretrained` runs them, by Transformers' own code, on symbolic tensors: once on
those that stand for stored elements, so that a right export is the identity, and once on those that stand for live
elements, to plan loading the export. Nothing is saved, nothing is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from attrs import evolve

from ..analysis.contract_globs import Exclusions
from ..facts import CheckpointFacts, ModelFacts
from ..loading.live_names import is_adapted
from ..loading.load import ModelLoad
from ..loading.loader import PlanUnknownError
from ..loading.planner import LiveModel
from ..loading.recorded_conversions import Derived
from ..loading.releases import is_pretrained
from ..loading.stages import with_tensors
from .export_faults import Exported, ExportFault, Live, export_faults, reload_faults
from .forward import Forward, assembled, forward_of_load, symbolic_loader
from .reverse import NotReversibleError, reverse
from .symbolic.tensor import SymbolicTensor


def check_export(
    model: Any,
    model_facts: ModelFacts,
    checkpoint: CheckpointFacts,
    *,
    renames: Sequence[tuple[str, str]] = (),
    exclusions: Exclusions | None = None,
) -> tuple[ExportFault, ...]:
    """
    Follow the export of the live model and compare it with the checkpoint that it was loaded from.

    Raises `PlanUnknownError` when the load, or the export, cannot be followed.
    """
    load = ModelLoad.of(model, model_facts, renames, exclusions)
    if is_adapted(model):
        raise PlanUnknownError("what a model with adapters saves is the adapter")
    if getattr(load.model, "hf_quantizer", None) is not None:
        raise PlanUnknownError("a quantised model is saved by its quantiser, which is not followed")
    if not load.stages.recorded and not load.pretrained:
        raise PlanUnknownError("the model has no export: it is none of Transformers and recorded no conversions")
    loaded = forward_of_load(load, checkpoint, cast=False)
    for name, reason in loaded.refused.items():
        raise PlanUnknownError(f"the load cannot be followed: {name}: {reason}")
    try:
        exported = _exported(load, loaded)
    except NotReversibleError as error:
        return (ExportFault(what="operation", key="", live="", message=str(error), operation=error.operation),)
    again = _loaded_again(load, checkpoint, exported)
    return (*reload_faults(exported, load.live, again), *export_faults(exported))


def _loaded_again(load: ModelLoad, checkpoint: CheckpointFacts, exported: Exported) -> Forward:
    """Follow loading the export the way the checkpoint was loaded."""
    derived = {key: Derived(tensor=tensor, keys=(key,)) for key, tensor in exported.live.items()}
    written = evolve(with_tensors(checkpoint, derived), index=None)
    sources = exported.forward.sources
    loader_of = symbolic_loader(sources, cast=False)
    followed = load.follow(written, lambda entry: exported.live[entry.key], loader_of, exported.live)
    return assembled(followed, sources)


def _exported(load: ModelLoad, loaded: Forward) -> Exported:
    model, live = load.model, load.live
    leaves = {
        name: SymbolicTensor.leaf(Live(tensor.identity), tensor.shape, getattr(torch, tensor.dtype))
        for name, tensor in live.tensors.items()
    }
    written, dropped = _written(model, live)
    stored = {name: loaded.regions.get(name, leaves[name]) for name in written}
    return Exported(
        forward=loaded,
        stored=reverse(model, stored, load.stages),
        live=reverse(model, {name: leaves[name] for name in written}, load.stages),
        dropped=frozenset(dropped),
        plans=loaded.plan.tensor_by_name(),
    )


def _written(model: Any, live: LiveModel) -> tuple[list[str], set[str]]:
    """The live names that are saved, and those that the class does not save. Of a tie one name is saved."""
    unsaved = {name for name in getattr(model, "_keys_to_ignore_on_save", None) or () if name in live.tensors}
    shared: dict[str, list[str]] = {}
    for name, tensor in live.tensors.items():
        if name not in unsaved:
            shared.setdefault(tensor.identity, []).append(name)
    dropped: set[str] = set()
    if any(len(names) > 1 for names in shared.values()):
        patterns = _tied_patterns(model)
        for names in shared.values():
            declared = [name for name in sorted(names) if any(re.search(pattern, name) for pattern in patterns)]
            dropped.update(declared[: len(names) - 1])
            dropped.update([name for name in sorted(names) if name not in dropped][1:])
    return [name for name in live.tensors if name not in unsaved and name not in dropped], unsaved


def _tied_patterns(model: Any) -> Sequence[str]:
    if not is_pretrained(model):
        return ()
    from transformers.modeling_utils import _get_tied_weight_keys

    return tuple(_get_tied_weight_keys(model))
