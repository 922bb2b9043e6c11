"""
The recorded_load from the checkpoint to the model: which stored elements every live tensor must hold.

The names are those of the load plan. Conversions are run by Transformers' own code on symbolic tensors; one that
cannot be followed without values is evaluated on values when its tensors are small enough, else refused by name.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, field, frozen

from ..analysis.contract_globs import Exclusions
from ..facts import CheckpointFacts, EntryFacts, ModelFacts, PlanFacts, TensorPlan
from ..introspect.walk import Walk, walk
from ..loading.identity_loader import IdentityLoader
from ..loading.live_names import from_model_facts, is_adapted, unwrapped
from ..loading.loader import Converted, Loader, PlanUnknownError
from ..loading.plan import is_pretrained, live_quantizer, nested_plan
from ..loading.planner import make_plan
from ..loading.recorded_conversions import pristine
from ..loading.stages import LoadStages, StagedCheckpoint, in_stored_keys, load_stages, staged_checkpoint
from ..loading.transformers_loader import TransformersLoader
from ..names import first_line
from .conversions import ConversionGroup, Part, Read, RowByRow, Rows, bytes_taken, cutting_of, resized
from .packed import bits_only, decoded, is_quantised, repacked, statistics
from .storage.dcp import read_folder
from .storage.stored_tensors import SourceSet, TensorSource, sources_of
from .symbolic.radix import Untrackable
from .symbolic.tensor import SymbolicTensor

Values = dict[str, torch.Tensor]
Given = Mapping[str, SymbolicTensor] | None


@frozen(kw_only=True)
class Forward:
    """
    The plan with symbolic tensors: `regions` by live name for all that is loaded, `groups` by first live name.

    `plan` has the rest: what is missing, ignored, excluded, left over. `refused` gives, by live name, the reason why a
    tensor cannot be compared.
    """

    plan: PlanFacts
    sources: SourceSet
    regions: Mapping[str, SymbolicTensor]
    groups: Mapping[str, ConversionGroup] = field(factory=dict)
    refused: Mapping[str, str] = field(factory=dict)


def forward(
    model: Any,
    model_facts: ModelFacts,
    checkpoint: CheckpointFacts,
    *,
    renames: Sequence[tuple[str, str]] = (),
    exclusions: Exclusions | None = None,
    cast: bool = True,
) -> Forward:
    """
    Plan the load of `checkpoint` into the live `model` and follow every element.

    `cast` makes conversions see their tensors in the live dtype, as the loader does; without it in the stored one.

    Raises `PlanUnknownError` when no plan can be made and `ReadError` when a file cannot be opened.
    """
    if checkpoint.format not in ("safetensors", "safetensors-sharded") or not checkpoint.entries:
        raise PlanUnknownError(
            f"{checkpoint.path}: expected safetensors files with tensors, found the format {checkpoint.format} with "
            f"{len(checkpoint.entries)} tensors"
        )
    sources = sources_of(checkpoint)
    base = unwrapped(model)
    recorded_load = load_stages(base, pretrained=is_pretrained(base), renames=renames)
    live = from_model_facts(model_facts, adapted=is_adapted(model))
    found = (
        staged_checkpoint(checkpoint, recorded_load.before, base, lambda entry: _whole(entry, sources))
        if recorded_load.before
        else None
    )
    given = tensors_of(found)
    rules = rules_of(base, checkpoint, renames, sources, recorded_load, cast=cast, given=given)
    plan = make_plan(rules, live, found.checkpoint if found else checkpoint, exclusions)
    made = assembled(plan, rules, sources, given)
    return evolve(made, plan=in_stored_keys(plan, found, checkpoint, exclusions)) if found else made


def forward_of_folder(
    model: Any,
    model_facts: ModelFacts,
    checkpoint: CheckpointFacts,
    *,
    renames: Sequence[tuple[str, str]] = (),
    exclusions: Exclusions | None = None,
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
    live = from_model_facts(model_facts, adapted=is_adapted(model))
    plan = nested_plan(checkpoint, live, exclusions, renames)
    return assembled(plan, None, SourceSet(tensors=folder.tensors, refused=folder.refused))


def _whole(entry: EntryFacts, sources: SourceSet) -> SymbolicTensor:
    source = sources.tensors.get(entry.key)
    if source is None:
        raise PlanUnknownError(f"{entry.key}: {sources.refused.get(entry.key, 'it is not stored')}")
    return SymbolicTensor.leaf(entry.key, source.shape, source.dtype)


def tensors_of(found: StagedCheckpoint | None) -> Given:
    """The tensors of a checkpoint behind recorded stages; None when there are no stages before the last."""
    return None if found is None else {key: item.tensor for key, item in found.made.items()}


def rules_of(
    model: Any,
    checkpoint: CheckpointFacts,
    renames: Sequence[tuple[str, str]],
    sources: SourceSet,
    recorded_load: LoadStages,
    *,
    cast: bool,
    given: Given = None,
) -> Loader:
    """The rules of the model's loader. `given` are tensors that stand in the place of the stored ones, by key."""
    if not is_pretrained(model):
        return IdentityLoader(renames)
    quantizer = live_quantizer(model, checkpoint)
    return FollowedRules(
        model, sources, cast=cast, quantizer=quantizer, renames=renames, stage=recorded_load.last, given=given
    )


class FollowedRules(TransformersLoader):
    """Transformers' rules, with conversions run on symbolic tensors that are kept by live name."""

    def __init__(self, model: Any, sources: SourceSet, *, cast: bool, given: Given = None, **settings: Any) -> None:
        super().__init__(model, **settings)
        self._given = given
        self._cast = cast
        self._sources = sources
        self.regions: dict[str, SymbolicTensor] = {}
        self.statistics: dict[str, SymbolicTensor] = {}
        self.groups: dict[str, ConversionGroup] = {}
        self.refused: dict[str, str] = {}

    def convert(self, name: str, recipe: Any, parts: Sequence[tuple[str, EntryFacts]], dtype: str) -> Converted:
        """Follow the elements; what needs values becomes a group, what would touch the model is refused."""
        stored = self._sources.tensors if self._given is None else self._given
        unreadable = next((entry.key for _, entry in parts if entry.key not in stored), None)
        if unreadable is not None:
            return self._refuse(name, f"{unreadable}: {self._sources.refused.get(unreadable, 'not stored')}")
        deserialising = next(
            (operation for operation in self.operations(recipe) if operation.endswith("Deserialize")), ""
        )
        if deserialising:
            return self._deserialised(name, recipe, parts)
        wanted = getattr(torch, dtype)
        if any(pattern.endswith("_packed") for pattern, _ in parts):  # following each code would make a box of each
            reason = f"{self.operations(recipe)[0]} decodes packed codes, which takes their values"
            return self._group(name, recipe, parts, wanted, reason)
        try:
            found = self._run(name, recipe, [(p, e.key, self._leaf(e.key, recipe, wanted)) for p, e in parts])
        except Untrackable as error:
            return self._group(name, recipe, parts, wanted, str(error))
        except Exception as error:  # whatever a conversion raises while loading
            return Converted({}, first_line(error, kind=True))
        self.regions.update(found)
        return Converted({target: tuple(tensor.shape) for target, tensor in found.items()})

    def _deserialised(self, name: str, recipe: Any, parts: Sequence[tuple[str, EntryFacts]]) -> Converted:
        """Packed weights that stay packed: as stored, when the library keeps them so; decoded since then: a group."""
        if self._given is not None:
            return self._refuse(name, f"{self.operations(recipe)[0]} of tensors from another recorded stage")
        if len(parts) == 1:  # a weight of the ordinary kind, that passes through
            return self._as_stored(name, parts[0][1].key)
        operation = self.operations(recipe)[0]
        if not operation.startswith("Bnb"):
            return self._refuse(name, f"{operation} rewrites the model, its live layout cannot be compared")
        keys = {pattern: entry.key for pattern, entry in parts}
        if is_quantised(self._live_parameter(name)):
            weight = keys.pop("weight")
            leaves = {f"{name.removesuffix('weight')}{pattern}": self._stored(key) for pattern, key in keys.items()}
            self.statistics.update(leaves)
            self.regions[name] = bits_only(self._stored(weight))  # type: ignore[assignment]
            return Converted({name: self._sources.tensors[weight].shape})
        stored = [Part(pattern, self._sources.tensors[key]) for pattern, key in keys.items()]
        shape = tuple(getattr(self._live_parameter(name), "shape", ()))
        self.groups[name] = ConversionGroup(
            keys=tuple(keys.values()),
            nbytes=bytes_taken(recipe, stored, shape),
            reason=f"{operation} is followed by decoding",
            evaluate=lambda read, _: {name: decoded({pattern: read(key, None) for pattern, key in keys.items()})},
        )
        return Converted({name: None})

    def made_while_loading(self) -> dict[str, str]:
        """Tensors whose values were computed while loading, so that no stored tensor holds them, with the reason."""
        names = set(self.quantised())
        if not names:
            return {}
        names |= {name for aliases, _ in statistics(self._walked) for name in aliases}
        method = getattr(self._quantizer.quantization_config, "quant_method", "the quantiser")
        reason = f"{getattr(method, 'value', method)} quantised it while loading: no stored tensor holds these values"
        return dict.fromkeys(names, reason)

    def repacked(self) -> dict[str, str]:
        """Tensors that may be in the order of a kernel, with the reason."""
        return repacked(self._walked)

    @functools.cached_property
    def _walked(self) -> Walk:
        return walk(self._model)

    @functools.cached_property
    def _live_tensors(self) -> Mapping[str, Any]:
        return {alias: tensor.tensor for tensor in self._walked.tensors for alias in tensor.names}

    def _live_parameter(self, name: str) -> Any:
        return self._live_tensors.get(name)

    def _as_stored(self, name: str, key: str) -> Converted:
        self.regions[name] = self._stored(key)
        return Converted({name: self._sources.tensors[key].shape})

    def _stored(self, key: str) -> SymbolicTensor:
        source = self._sources.tensors[key]
        return SymbolicTensor.leaf(key, source.shape, source.dtype)

    def _refuse(self, name: str, reason: str) -> Converted:
        self.refused[name] = reason
        return Converted({name: None})

    def _leaf(self, key: str, recipe: Any, wanted: torch.dtype) -> SymbolicTensor:
        leaf = self._stored(key) if self._given is None else self._given[key]
        return leaf if self._kept_as_stored(leaf.dtype, recipe) else leaf.to(wanted)  # type: ignore[return-value]

    def _kept_as_stored(self, dtype: torch.dtype, recipe: Any) -> bool:
        """Whether the loader hands the tensor over uncast: what a quantiser stores, it decodes itself."""
        if not self._cast or any(hasattr(operation, "hf_quantizer") for operation in recipe.operations):
            return True
        return self._quantizer is not None and not dtype.is_floating_point

    def _run(self, name: str, recipe: Any, parts: Sequence[tuple[str, str, torch.Tensor]]) -> dict[str, Any]:
        group = pristine(recipe)
        for pattern, key, tensor in parts:
            group.add_tensor(name, key, pattern, tensor)
        with torch.no_grad():
            result = group.convert(
                name, model=self._model, config=self._model.config, hf_quantizer=self._quantizer, loading_info=None
            )
        return {target: value[0] if isinstance(value, list) else value for target, value in result.items()}

    def _group(
        self, name: str, recipe: Any, parts: Sequence[tuple[str, EntryFacts]], wanted: torch.dtype, reason: str
    ) -> Converted:
        if self._given is not None:
            return self._refuse(name, f"{reason}, and its tensors come out of another recorded stage")
        keys = tuple(dict.fromkeys(entry.key for _, entry in parts))
        shape = tuple(getattr(self._live_parameter(name), "shape", ()))
        stored = [Part(pattern, self._sources.tensors[entry.key]) for pattern, entry in parts]
        cut = cutting_of(recipe, stored, shape)

        def evaluate(read: Read, rows: Rows | None) -> Values:
            found = []
            for part, wanted_rows in cut.parts(rows):
                value = read(part.source.key, wanted_rows)
                if isinstance(cut, RowByRow):
                    value = resized(part, value, rows)
                kept = self._kept_as_stored(value.dtype, recipe)
                found.append((part.pattern, part.source.key, value if kept else value.to(wanted)))
            return self._run(name, recipe, found)

        nbytes = bytes_taken(recipe, stored, shape)
        self.groups[name] = ConversionGroup(
            keys=keys, nbytes=nbytes, reason=reason, evaluate=evaluate, rows=cut.rows, step=cut.step
        )
        return Converted({name: None})


def assembled(plan: PlanFacts, rules: Loader | None, sources: SourceSet, given: Given = None) -> Forward:
    """Put together what the rules followed while the plan was made: the symbolic tensors by live name."""
    followed = rules if isinstance(rules, FollowedRules) else None
    converted = followed.regions if followed else {}
    groups = followed.groups if followed else {}
    refused = dict(followed.refused) if followed else {}
    regions: dict[str, SymbolicTensor] = dict(followed.statistics) if followed else {}
    if followed:
        refused |= followed.made_while_loading() | followed.repacked()
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
    return Forward(plan=plan, sources=sources, regions=regions, groups=groups, refused=refused)


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
