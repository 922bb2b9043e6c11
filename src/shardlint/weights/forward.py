"""
The load from the checkpoint to the model: which stored elements every live tensor must hold.

The names are those of the load plan. Conversions are run by Transformers' own code on symbolic tensors; one that
cannot be followed without values is evaluated on values when its tensors are small enough, else refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from ..analysis.contract_globs import Exclusions
from ..facts import CheckpointFacts, EntryFacts, ModelFacts, PlanFacts, TensorPlan
from ..introspect.walk import walk
from ..loading.declared import Declared
from ..loading.load import FollowedLoad, LoaderOf, ModelLoad
from ..loading.loader import Loader, PlanUnknownError
from .conversions import ConversionGroup
from .excuses import Excuses
from .packed import is_quantised, repacked
from .storage.dcp import read_folder
from .storage.stored_tensors import SourceSet, TensorSource, sources_of
from .symbolic.tensor import SymbolicTensor
from .symbolic_loader import Given, SymbolicLoader


@frozen(kw_only=True)
class Forward:
    """
    The plan with symbolic tensors: `regions` by live name for all that is loaded, `groups` by first live name.

    `plan` has the rest: what is missing, ignored, excluded, left over. `refused` gives, by live name, the reason why a
    tensor cannot be compared; of those in `computed` nothing stored holds the values. `excuses` are why what has no
    counterpart needs none.
    """

    plan: PlanFacts
    sources: SourceSet
    regions: Mapping[str, SymbolicTensor]
    groups: Mapping[str, ConversionGroup] = field(factory=dict)
    refused: Mapping[str, str] = field(factory=dict)
    computed: frozenset[str] = frozenset()
    excuses: Excuses = field(factory=Excuses)


def forward(
    model: Any,
    model_facts: ModelFacts,
    checkpoint: CheckpointFacts,
    *,
    renames: Sequence[tuple[str, str]] = (),
    exclusions: Exclusions | None = None,
    declared: Declared | None = None,
    cast: bool = True,
) -> Forward:
    """
    Plan the load of `checkpoint` into the live `model` and follow every element.

    Raises `PlanUnknownError` when no plan can be made and `ReadError` when a file cannot be opened.
    """
    load = ModelLoad.of(model, model_facts, renames, exclusions, declared)
    return forward_of_load(load, checkpoint, cast=cast)


def forward_of_load(load: ModelLoad, checkpoint: CheckpointFacts, *, cast: bool = True) -> Forward:
    """
    Plan a load of `checkpoint` and follow every element, as `forward` does.

    `cast` makes conversions see their tensors in the live dtype, as the loader does; without it in the stored one.
    """
    if checkpoint.format not in ("safetensors", "safetensors-sharded") or not checkpoint.entries:
        safetensors = checkpoint.format.startswith("safetensors")
        found = "no tensor in them" if safetensors else f"the format {checkpoint.format}"
        raise PlanUnknownError(f"{checkpoint.path}: expected safetensors files with tensors, found {found}")
    sources = sources_of(checkpoint)
    loader_of = symbolic_loader(sources, cast=cast)
    followed = load.follow(checkpoint, lambda entry: _whole(entry, sources), loader_of)
    forward = assembled(followed, sources)
    within = followed.part
    return evolve(
        forward,
        plan=followed.stored_plan,
        regions={within + name: region for name, region in forward.regions.items()},
        groups={within + name: group for name, group in forward.groups.items()},
        refused={within + name: reason for name, reason in forward.refused.items()},
    )


def forward_of_folder(
    model: Any,
    model_facts: ModelFacts,
    checkpoint: CheckpointFacts,
    *,
    renames: Sequence[tuple[str, str]] = (),
    exclusions: Exclusions | None = None,
    declared: Declared | None = None,
) -> Forward:
    """
    Plan the load of a folder of torch.distributed.checkpoint into the live `model`, as `forward` does for safetensors.

    Its loader knows no conversions: every tensor comes from one stored one. Raises `PlanUnknownError` when no plan can
    be made and `ReadError` when the metadata cannot be read.
    """
    if not checkpoint.entries:
        raise PlanUnknownError(f"{checkpoint.path}: expected a folder of torch.distributed.checkpoint with tensors")
    walked = walk(model)
    if any(is_quantised(tensor.tensor) for tensor in walked.tensors):
        raise PlanUnknownError("weights that bitsandbytes packed are not followed into torch.distributed.checkpoint")
    for name, reason in repacked(walked).items():
        raise PlanUnknownError(f"{name}: {reason}")
    folder = read_folder(Path(checkpoint.path))
    plan = ModelLoad.of(model, model_facts, renames, exclusions, declared).nested_plan(checkpoint)
    return _assembled(plan, None, SourceSet(tensors=folder.tensors, refused=folder.refused))


def stored_forward(plan: PlanFacts, sources: SourceSet) -> Forward:
    """The load of a plan in which every tensor comes from one stored one as it is."""
    return _assembled(plan, None, sources)


def _whole(entry: EntryFacts, sources: SourceSet) -> SymbolicTensor:
    source = sources.tensors.get(entry.key)
    if source is None:
        raise PlanUnknownError(f"{entry.key}: {sources.refused.get(entry.key, 'it is not stored')}")
    return SymbolicTensor.leaf(entry.key, source.shape, source.dtype)


def symbolic_loader(sources: SourceSet, *, cast: bool) -> LoaderOf:
    """The loader of a model of Transformers that follows elements of `sources`."""

    def loader(model: Any, *, tensors: Given, **settings: Any) -> Loader:
        return SymbolicLoader(model, sources, cast=cast, given=tensors, **settings)

    return loader


def assembled(followed: FollowedLoad, sources: SourceSet) -> Forward:
    """Put together what was followed while the plan was made: the symbolic tensors by live name."""
    return _assembled(followed.plan, followed.loader, sources, followed.tensors)


def _assembled(plan: PlanFacts, loader: Loader | None, sources: SourceSet, given: Given = None) -> Forward:
    followed = loader if isinstance(loader, SymbolicLoader) else None
    converted = followed.regions if followed else {}
    groups = followed.groups if followed else {}
    refused = dict(followed.refused) if followed else {}
    regions: dict[str, SymbolicTensor] = dict(followed.statistics) if followed else {}
    made = followed.made_while_loading() if followed else {}
    if followed:
        refused |= made | followed.repacked()
    refused.update(_ambiguous(plan))
    for tensor in plan.tensors:
        if tensor.status != "loaded" or tensor.name in groups or tensor.name in refused:
            continue
        found = converted.get(tensor.name) if tensor.operations else _stored(tensor, sources, refused, given)
        if found is not None:
            regions[tensor.name] = found
    for tensor in plan.tensors:
        if tensor.status == "tied" and tensor.tied_to in regions:
            regions[tensor.name] = regions[tensor.tied_to]
        elif tensor.status == "tied" and tensor.tied_to in refused:
            refused[tensor.name] = refused[tensor.tied_to]
    return Forward(
        plan=plan, sources=sources, regions=regions, groups=groups, refused=refused, computed=frozenset(made)
    )


def _ambiguous(plan: PlanFacts) -> dict[str, str]:
    """Live tensors of which it would be a guess which stored tensor fills them, with both candidates."""
    found: dict[str, str] = {}
    for remark in plan.remarks:
        if remark.kind == "duplicate-source":
            found[remark.name] = f"ambiguous: the stored keys {' and '.join(remark.keys)} are both for it"
        elif remark.kind == "ambiguous-prefix":
            text = f"ambiguous: with and without the base-model prefix a key is for {' and '.join(remark.keys)}"
            found.update(dict.fromkeys(remark.keys, text))
    return found


def _stored(tensor: TensorPlan, sources: SourceSet, refused: dict[str, str], given: Given) -> SymbolicTensor | None:
    (key,) = tensor.sources
    if given is not None:
        return given[key]
    source: TensorSource | None = sources.tensors.get(key)
    if source is None:
        refused[tensor.name] = f"{key}: {sources.refused.get(key, 'it is not stored')}"
        return None
    return SymbolicTensor.leaf(key, source.shape, source.dtype)
