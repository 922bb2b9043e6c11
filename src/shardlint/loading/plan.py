"""Collecting the `plan` section: from a live model, or from a model built on meta from the checkpoint alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from ..analysis.contract_globs import Exclusions
from ..analysis.renamings import infer_renamings
from ..checkpoint.byte_compare import ByteComparer
from ..facts import CheckpointFacts, EntryFacts, ModelFacts, PlanFacts, TensorPlan, TiePlan
from ..facts.checkpoint import TORCH_DTYPES
from .declared import Declared
from .heads import heads_of
from .live_names import from_meta_model
from .load import ModelLoad, nested_plan
from .loader import ConfigRefusedError, Loader, PlanUnknownError
from .planner import make_plan

__all__ = ["ConfigRefusedError", "PlanUnknownError", "collect_plan", "nested_plan"]


def collect_plan(
    checkpoint: CheckpointFacts,
    *,
    model: Any = None,
    model_facts: ModelFacts | None = None,
    renames: Sequence[tuple[str, str]] = (),
    exclusions: Exclusions | None = None,
    declared: Declared | None = None,
) -> PlanFacts:
    """
    Plan loading `checkpoint` into `model`, or into the architecture that its `config.json` names when there is none.

    `model_facts` are the facts of `model` and come with it; `declared` stand in place of its tensors, or beside.
    `renames` are the owner's: pairs of a regular expression and its replacement. Nothing is loaded, no tensor is read,
    and the model is not touched. Raises `PlanUnknownError`.
    """
    _require_headers(checkpoint)
    if model is not None and model_facts is None:
        raise PlanUnknownError("the facts of the model were not collected")

    def plan(declared_renames: Sequence[tuple[str, str]]) -> PlanFacts:
        if model is None or model_facts is None:
            return _from_config(checkpoint, exclusions, declared_renames)
        return _from_model(checkpoint, ModelLoad.of(model, model_facts, declared_renames, exclusions, declared))

    return _with_cures(plan(renames), lambda cures: plan([*renames, *cures]))


def _with_cures(plan: PlanFacts, again: Callable[[Sequence[tuple[str, str]]], PlanFacts]) -> PlanFacts:
    """The plan with the renamings that would give sources to tensors without one, each tried by planning with it."""
    cures = infer_renamings(plan)
    if not cures:
        return plan
    try:
        cured = again([(cure.source, cure.target) for cure in cures])
    except PlanUnknownError:  # the loader takes no such renaming
        return plan
    status = {tensor.name: tensor.status for tensor in cured.tensors}
    before = {tensor.name for tensor in plan.tensors if tensor.status in ("loaded", "tied")}
    if any(status.get(name) not in ("loaded", "tied") for name in before):
        return plan
    return evolve(plan, cures=tuple(cure for cure in cures if all(status.get(name) == "loaded" for name in cure.names)))


def _from_model(checkpoint: CheckpointFacts, load: ModelLoad) -> PlanFacts:
    if checkpoint.format == "dcp":
        plan = load.nested_plan(checkpoint)
    else:
        plan = _with_ties_compared(load.follow(checkpoint, _on_meta, _transformers_loader).stored_plan, checkpoint)
    return evolve(plan, heads=heads_of(load.model, plan, checkpoint))


def _transformers_loader(model: Any, *, tensors: Mapping[str, Any] | None, **settings: Any) -> Loader:
    """The loader that follows shapes, for which it needs no tensors."""
    from .transformers_loader import TransformersLoader

    return TransformersLoader(model, **settings)


def _on_meta(entry: EntryFacts) -> Any:
    import torch

    return torch.empty(entry.shape, dtype=getattr(torch, TORCH_DTYPES.get(entry.dtype, "uint8")), device="meta")


def _with_ties_compared(plan: PlanFacts, checkpoint: CheckpointFacts) -> PlanFacts:
    """Compare the bytes of ties of which both ends are stored: the loader ties them only when they are equal."""
    if not any(tie.both_stored for tie in plan.ties):
        return plan
    path = Path(checkpoint.path)
    stored = {entry.key: entry for entry in checkpoint.entries}
    tensors = plan.tensor_by_name()
    with ByteComparer.of(path if path.is_dir() else path.parent, checkpoint.files) as comparer:
        ties = tuple(_compared(tie, tensors, stored, comparer) if tie.both_stored else tie for tie in plan.ties)
    return evolve(plan, ties=ties)


def _compared(
    tie: TiePlan, tensors: Mapping[str, TensorPlan], stored: Mapping[str, EntryFacts], comparer: ByteComparer
) -> TiePlan:
    ends = [tensors[name] for name in (tie.name, tie.source)]
    if any(end.operations or len(end.sources) != 1 for end in ends):
        return tie
    first, second = (stored[end.sources[0]] for end in ends)
    return evolve(tie, equal=True if first is second else comparer.equal(first, second))


def _require_headers(checkpoint: CheckpointFacts) -> None:
    if checkpoint.format not in ("safetensors", "safetensors-sharded", "dcp"):
        raise PlanUnknownError(f"a checkpoint of format {checkpoint.format} is not planned")
    if not checkpoint.entries:
        raise PlanUnknownError("no tensor of the checkpoint could be read")


def _from_config(
    checkpoint: CheckpointFacts, exclusions: Exclusions | None, renames: Sequence[tuple[str, str]]
) -> PlanFacts:
    from .meta_model import build_meta_model
    from .transformers_loader import TransformersLoader

    built = build_meta_model(checkpoint)
    if checkpoint.format == "dcp":
        return nested_plan(checkpoint, from_meta_model(built.model), exclusions, renames)
    rules = TransformersLoader(built.model, quantizer=built.quantizer, live_model=False)
    plan = make_plan(rules, from_meta_model(built.model), checkpoint, exclusions)
    return _with_ties_compared(evolve(plan, heads=heads_of(None, plan, checkpoint)), checkpoint)
