"""Load plans for base snapshots: what the collector would find for a sound checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve
from msgspec.structs import replace

from ..facts import EntryFacts, Facts, PlanFacts, TensorFacts, TensorPlan, TiePlan


def with_plan(facts: Facts, sources: Mapping[str, Sequence[str]] | None = None) -> Facts:
    """
    Return `facts` with the plan of their sound checkpoint.

    Every tensor is loaded from the key of its own name, or from `sources`: merged when these are several, renamed when
    it is one. Aliases are tied. Raises `KeyError` for a source that is not stored, `ValueError` without model and
    checkpoint.
    """
    if facts.model is None or facts.checkpoint is None:
        raise ValueError("a plan needs the facts of a model and of a checkpoint")
    entries = {entry.key: entry for entry in facts.checkpoint.entries}
    tensors = []
    ties = []
    for tensor in facts.model.tensors:
        if not tensor.in_state_dict:
            continue
        stored = [entries[key] for key in (sources or {}).get(tensor.fqn, (tensor.fqn,))]
        tensors.append(_loaded(tensor, stored))
        for alias in tensor.aliases[1:]:
            tensors.append(replace(tensors[-1], name=alias, status="tied", tied_to=tensor.fqn))
            ties.append(TiePlan(name=alias, source=tensor.fqn, both_stored=False))
    plan = PlanFacts(
        loader="transformers 5.24.0",
        basis="model",
        architecture=facts.model.qualified_type,
        tensors=tuple(tensors),
        ties=tuple(ties),
        round_trips_checked=len(tensors),
    )
    return evolve(facts, plan=plan)


def _loaded(tensor: TensorFacts, stored: Sequence[EntryFacts]) -> TensorPlan:
    return TensorPlan(
        name=tensor.fqn,
        status="loaded",
        shape=tensor.shape,
        dtype=tensor.dtype,
        sources=tuple(entry.key for entry in stored),
        files=tuple(sorted({entry.file for entry in stored})),
        operations=("MergeModulelist",) if len(stored) > 1 else (),
        stored_dtypes=tuple(sorted({entry.dtype for entry in stored})),
    )
