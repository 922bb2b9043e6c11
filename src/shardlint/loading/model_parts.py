"""A checkpoint of one module of a larger model: a trunk in a user's own module, the transformer of an embedder."""

from __future__ import annotations

from typing import Any

import msgspec
from attrs import evolve, frozen

from ..analysis.contract_globs import Exclusions
from ..analysis.model_config import architectures_of
from ..facts import CheckpointFacts, PlanFacts, TensorPlan
from .planner import LiveModel
from .releases import is_pretrained


@frozen
class ModelPart:
    """A model of Transformers within a module that is none; `prefix` stands before the names of its tensors."""

    prefix: str
    model: Any


def part_for(model: Any, checkpoint: CheckpointFacts) -> ModelPart | None:
    """
    The module of `model` whose checkpoint this is; None unless exactly one model of Transformers stands in it.

    It has to be of the class or the model type that the stored configuration names, and no stored key may name it by
    its place in the whole.
    """
    config = checkpoint.config
    if config is None or checkpoint.format == "dcp" or not hasattr(model, "named_modules"):
        return None
    outermost: list[ModelPart] = []
    for name, module in model.named_modules():
        if name and is_pretrained(module) and not any(f"{name}.".startswith(part.prefix) for part in outermost):
            outermost.append(ModelPart(f"{name}.", module))
    if len(outermost) != 1:
        return None
    (part,) = outermost
    named = type(part.model).__name__ in architectures_of(config)
    kind = getattr(getattr(part.model, "config", None), "model_type", None)
    if not named and (not kind or kind != config.get("model_type")):
        return None
    return None if any(entry.key.startswith(part.prefix) for entry in checkpoint.entries) else part


def split_live(live: LiveModel, prefix: str) -> tuple[LiveModel, LiveModel]:
    """The tensors below `prefix`, by their names there, and the others."""
    inner = {name.removeprefix(prefix): target for name, target in live.tensors.items() if name.startswith(prefix)}
    outer = {name: target for name, target in live.tensors.items() if not name.startswith(prefix)}
    unsaved = {name.removeprefix(prefix) for name in live.unsaved_buffers if name.startswith(prefix)}
    return evolve(live, tensors=inner, unsaved_buffers=frozenset(unsaved)), evolve(live, tensors=outer)


def whole_plan(plan: PlanFacts, prefix: str, outside: LiveModel, exclusions: Exclusions | None) -> PlanFacts:
    """The plan of a part in the names of the whole; what is `outside` has no source, unless it is excluded."""
    exclusions = exclusions or Exclusions()
    others = tuple(
        TensorPlan(
            name=name,
            status="missing-excluded" if (glob := exclusions.of_tensor(name)) else "missing",
            shape=target.shape,
            dtype=target.dtype,
            reason=glob,
        )
        for name, target in outside.tensors.items()
    )
    tensors = tuple(
        msgspec.structs.replace(item, name=prefix + item.name, tied_to=item.tied_to and prefix + item.tied_to)
        for item in plan.tensors
    )
    return evolve(
        plan,
        architecture=outside.architecture,
        part=prefix,
        tensors=(*tensors, *others),
        leftovers=tuple(evolve(item, renamed=prefix + item.renamed) for item in plan.leftovers),
        ties=tuple(evolve(tie, name=prefix + tie.name, source=prefix + tie.source) for tie in plan.ties),
        round_trips=tuple(
            evolve(trip, name=prefix + trip.name, loaded=prefix + trip.loaded) for trip in plan.round_trips
        ),
        remarks=tuple(evolve(remark, name=prefix + remark.name) for remark in plan.remarks),
    )
