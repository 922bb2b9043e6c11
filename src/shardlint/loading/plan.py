"""Collecting the `plan` section: from a live model, or from a model built on meta from the checkpoint alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from ..analysis.contract_globs import Exclusions
from ..analysis.model_config import LOADED_QUANTISATION, quantisation_settings
from ..checkpoint.byte_compare import ByteComparer
from ..facts import CheckpointFacts, EntryFacts, ModelFacts, PlanFacts, TensorPlan, TiePlan
from ..facts.checkpoint import TORCH_DTYPES
from .dcp_loader import DcpLoader
from .identity_loader import IdentityLoader
from .live_names import from_meta_model, from_model_facts, is_adapted, unwrapped
from .loader import ConfigRefusedError, Loader, PlanUnknownError
from .planner import LiveModel, make_plan
from .stages import in_stored_keys, load_stages, staged_checkpoint

__all__ = ["ConfigRefusedError", "PlanUnknownError", "collect_plan", "nested_plan"]


def collect_plan(
    checkpoint: CheckpointFacts,
    *,
    model: Any = None,
    model_facts: ModelFacts | None = None,
    renames: Sequence[tuple[str, str]] = (),
    exclusions: Exclusions | None = None,
) -> PlanFacts:
    """
    Plan loading `checkpoint` into `model`, or into the architecture that its `config.json` names when there is none.

    `model_facts` are the facts of `model` and come with it. `renames` are the owner's: pairs of a regular expression
    and its replacement. Nothing is loaded, no tensor is read, and the model is not touched. Raises
    `PlanUnknownError`.
    """
    _require_headers(checkpoint)
    if model is None:
        return _from_config(checkpoint, exclusions, renames)
    if model_facts is None:
        raise PlanUnknownError("the facts of the model were not collected")
    live = from_model_facts(model_facts, adapted=is_adapted(model))
    if checkpoint.format == "dcp":
        return nested_plan(checkpoint, live, exclusions, renames)
    base = unwrapped(model)
    stages = load_stages(base, pretrained=is_pretrained(base), renames=renames)
    rules = _live_rules(base, checkpoint, renames, stages.last)
    if not stages.before:
        return _with_ties_compared(make_plan(rules, live, checkpoint, exclusions), checkpoint)
    found = staged_checkpoint(checkpoint, stages.before, base, _on_meta)
    plan = in_stored_keys(make_plan(rules, live, found.checkpoint, exclusions), found, checkpoint, exclusions)
    return _with_ties_compared(plan, checkpoint)


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
    return _with_ties_compared(plan, checkpoint)


def _live_rules(
    model: Any, checkpoint: CheckpointFacts, renames: Sequence[tuple[str, str]], stage: Sequence[Any] | None
) -> Loader:
    if not is_pretrained(model):
        return IdentityLoader(renames)
    from .transformers_loader import TransformersLoader

    return TransformersLoader(model, quantizer=live_quantizer(model, checkpoint), renames=renames, stage=stage)


def is_pretrained(model: Any) -> bool:
    """Whether the model is one of Transformers', without importing Transformers."""
    return any(
        f"{kind.__module__}.{kind.__name__}".endswith("modeling_utils.PreTrainedModel") for kind in type(model).__mro__
    )


def _holds_codes(model: Any) -> bool:
    """Whether the model has GPTQ's or AWQ's codes, which are loaded by their plain names, whoever loads them."""
    return any(
        name.endswith(".qweight") for tensors in (model.named_buffers, model.named_parameters) for name, _ in tensors()
    )


def live_quantizer(model: Any, checkpoint: CheckpointFacts) -> Any:
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
