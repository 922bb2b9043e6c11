"""
The load of a live model, step by step, whatever its tensors are: the same for the plan, the weights and the export.

Wrappers are taken off, recorded stages run on the stored tensors, the model's loader is found, and the plan is made.
What differs is what stands for a stored tensor: one on meta, or a symbolic one whose elements can be followed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import evolve, frozen

from ..analysis.contract_globs import Exclusions
from ..analysis.model_config import LOADED_QUANTISATION, quantisation_settings
from ..facts import CheckpointFacts, EntryFacts, ModelFacts, PlanFacts
from ..introspect.attributes import own
from .dcp_loader import DcpLoader
from .declared import Declared
from .identity_loader import IdentityLoader
from .live_names import from_model_facts, is_adapted, unwrapped
from .loader import Loader
from .model_parts import part_for, split_live, whole_plan
from .old_names import old_attention_names
from .planner import LiveModel, make_plan
from .releases import is_pretrained
from .stages import LoadStages, StagedCheckpoint, in_stored_keys, load_stages, staged_checkpoint

Leaf = Callable[[EntryFacts], Any]
"""What stands for a stored tensor."""
Renames = Sequence[tuple[str, str]]


class LoaderOf(Protocol):
    """
    Makes the loader of a model of Transformers.

    `tensors` are those that the loader sees in the place of the stored ones, by key; None when it sees the stored ones.
    The other arguments are those of `TransformersLoader`.
    """

    def __call__(
        self,
        model: Any,
        *,
        tensors: Mapping[str, Any] | None,
        quantizer: Any,
        renames: Renames,
        stage: Sequence[Any] | None,
    ) -> Loader:
        """Return the loader."""


@frozen(kw_only=True)
class FollowedLoad:
    """
    A load that was followed: the loader, and the plan in the keys that the loader sees.

    `tensors` are those by these keys when they are not the stored ones, else None. Where the checkpoint is that of one
    module of the model, `plan` has the names within it, `part` is what stands before them, `outside` is the rest.
    """

    loader: Loader
    plan: PlanFacts
    checkpoint: CheckpointFacts
    tensors: Mapping[str, Any] | None = None
    staged: StagedCheckpoint | None = None
    exclusions: Exclusions | None = None
    part: str = ""
    outside: LiveModel | None = None

    @property
    def stored_plan(self) -> PlanFacts:
        """The plan in the keys that are stored, and in the names of the whole model."""
        plan = self.plan
        if self.staged is not None:
            plan = in_stored_keys(plan, self.staged, self.checkpoint, self.exclusions)
        return plan if self.outside is None else whole_plan(plan, self.part, self.outside, self.exclusions)


@frozen(kw_only=True, slots=False)
class ModelLoad:
    """
    How checkpoints are loaded into one live model. `model` is the innermost one, `live` its tensors by loader names.

    `renames` are the owner's: pairs of a regular expression and its replacement.
    """

    model: Any
    live: LiveModel
    renames: Renames = ()
    exclusions: Exclusions | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        model_facts: ModelFacts,
        renames: Renames = (),
        exclusions: Exclusions | None = None,
        declared: Declared | None = None,
    ) -> ModelLoad:
        """The load of `model`, whose facts are `model_facts`; `declared` stand in place of its tensors, or beside."""
        live = from_model_facts(model_facts, adapted=is_adapted(model))
        if declared:
            live = evolve(live, tensors={**live.tensors, **declared})
        return cls(model=unwrapped(model), live=live, renames=renames, exclusions=exclusions)

    @functools.cached_property
    def pretrained(self) -> bool:
        """Whether the model is one of Transformers'."""
        return is_pretrained(self.model)

    @functools.cached_property
    def stages(self) -> LoadStages:
        """The stages that are recorded on the model. Raises `PlanUnknownError`."""
        return load_stages(self.model, pretrained=self.pretrained, renames=self.renames)

    def follow(
        self,
        checkpoint: CheckpointFacts,
        leaf: Leaf,
        loader_of: LoaderOf,
        given: Mapping[str, Any] | None = None,
    ) -> FollowedLoad:
        """
        Follow the load of `checkpoint`, whose tensors `leaf` makes.

        `given` are its tensors by key when they are not those of its files. Raises `PlanUnknownError`.
        """
        part = None if self.pretrained else part_for(self.model, checkpoint)
        if part is not None:
            inner, outside = split_live(self.live, part.prefix)
            followed = evolve(self, model=part.model, live=inner).follow(checkpoint, leaf, loader_of, given)
            return evolve(followed, part=part.prefix, outside=outside)
        before = self.stages.before
        staged = staged_checkpoint(checkpoint, before, self.model, leaf) if before else None
        tensors = given if staged is None else {key: derived.tensor for key, derived in staged.made.items()}
        loader = self._loader(checkpoint, loader_of, tensors)
        seen = checkpoint if staged is None else staged.checkpoint
        return FollowedLoad(
            loader=loader,
            plan=make_plan(loader, self.live, seen, self.exclusions),
            checkpoint=checkpoint,
            tensors=tensors,
            staged=staged,
            exclusions=self.exclusions,
        )

    def nested_plan(self, checkpoint: CheckpointFacts) -> PlanFacts:
        """Plan loading a folder of torch.distributed.checkpoint. Raises `PlanUnknownError`."""
        return nested_plan(checkpoint, self.live, self.exclusions, self.renames)

    def _loader(self, checkpoint: CheckpointFacts, loader_of: LoaderOf, tensors: Mapping[str, Any] | None) -> Loader:
        if not self.pretrained:
            prefix = own(self.model, "base_model_prefix")
            renames = [*self.renames, *old_attention_names(self.model)]
            return IdentityLoader(renames, prefix if isinstance(prefix, str) else "")
        return loader_of(
            self.model,
            tensors=tensors,
            quantizer=_live_quantizer(self.model, checkpoint),
            renames=self.renames,
            stage=self.stages.last,
        )


def nested_plan(
    checkpoint: CheckpointFacts,
    live: LiveModel,
    exclusions: Exclusions | None,
    renames: Sequence[tuple[str, str]],
) -> PlanFacts:
    """
    Plan loading a folder of torch.distributed.checkpoint, which may hold more than the model.

    Raises `PlanUnknownError` for a renaming that cannot be used.
    """
    rules = DcpLoader(checkpoint.parts, renames)
    plan = make_plan(rules, live, checkpoint, exclusions)
    leftovers = [
        evolve(leftover, reason="other-state")
        if leftover.reason == "unexpected" and rules.is_beside(leftover.key)
        else leftover
        for leftover in plan.leftovers
    ]
    return evolve(plan, leftovers=tuple(leftovers))


def _holds_codes(model: Any) -> bool:
    """Whether the model has GPTQ's or AWQ's codes, which are loaded by their plain names, whoever loads them."""
    return any(
        name.endswith(".qweight") for tensors in (model.named_buffers, model.named_parameters) for name, _ in tensors()
    )


def _live_quantizer(model: Any, checkpoint: CheckpointFacts) -> Any:
    """Return the quantiser that loaded the live model; for one that was dequantised while loading, its like."""
    from .meta_model import dequantizer
    from .transformers_loader import guarded

    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        return quantizer
    settings = quantisation_settings(checkpoint.config, LOADED_QUANTISATION)
    if settings is None or _holds_codes(model):
        return None
    return guarded("planning a dequantising load", lambda: dequantizer(settings))
