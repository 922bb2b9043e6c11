"""D603 stale-parameter."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import HeldTensor, OptimizerFacts, TensorSpec

from ._held import Counterpart, counterparts, partitioned, stale, where


class StaleParameter(Rule):
    """
    The optimizer holds a tensor that is no longer a parameter of the model.

    ## What it does
    Looks up every tensor of every group among the parameters that the model has now, by identity; main copies count
    as their parameter. For one that is not found it says which live parameter it once was: by the name that the
    optimizer keeps, else by shape and order. Sharded parameters are looked up in their units, so that a snapshot
    within a step raises no alarm. Tensors without elements are left out: partitioning optimizers empty their groups.

    ## Why it is unsafe
    The tensor gets no gradient, so `step()` passes it over silently, and the parameter that took its place is
    never updated. A training run goes on with a constant loss, or trains the other parameters alone.

    ## What to do
    Build the optimizer last: after `fully_shard`, after `to_empty` and loading, after resizing embeddings, after
    replacing modules, and outside of a step.
    """

    code = "D603"
    name = "stale-parameter"
    phase = Phase.D6
    severity = Severity.ERROR
    needs = (Section.OPTIMIZER,)

    def check(self, facts: Facts) -> Iterator[Finding]:
        optimizer = facts.require(Section.OPTIMIZER)
        counterpart_of = counterparts(optimizer)
        for tensor in stale(optimizer):
            yield self.stale_tensor(optimizer, tensor, counterpart_of.get(tensor.identity))
        if reasons := partitioned(optimizer):
            raise NotEvaluated("; ".join(reasons))

    def stale_tensor(self, optimizer: OptimizerFacts, tensor: HeldTensor, was: Counterpart | None) -> Finding:
        spec, place = optimizer.specs[tensor.spec], where(optimizer, tensor)
        live = None if was is None else was.parameter
        text = f"{place} holds a tensor that is not a parameter of the model, {spec.text()}"
        if was is not None and live is not None:
            text += f"; by {was.by} it was {live.fqn}, {_cause(tensor, spec, optimizer.specs[live.spec])}"
        return self.finding(
            subject=place if live is None else live.fqn,
            kind=SubjectKind.MODEL if live is None else SubjectKind.TENSOR,
            message=text,
            evidence={
                "place": place,
                "held": spec.text(),
                "live": None if live is None else live.fqn,
                "by": "" if was is None else was.by,
                "declared_name": tensor.name,
            },
            owner=live.owner or None if live is not None else None,
            key=place,
        )


def _cause(tensor: HeldTensor, spec: TensorSpec, live: TensorSpec) -> str:
    """What probably happened, in words, with what the live parameter is like."""
    if tensor.full_copy_of is not None:
        return f"of which it is the full copy within a step (the optimizer was built there); live is {live.text()}"
    if spec.shape != live.shape and len(spec.shape) == len(live.shape):
        return f"which is now {live.text()} (resized or replaced since)"
    if spec.layout != live.layout:
        return f"which is now {live.text()} (sharded since)"
    return "which is another tensor now (replaced since, by to_empty or with its module)"
