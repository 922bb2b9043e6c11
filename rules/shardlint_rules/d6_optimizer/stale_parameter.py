"""D603 stale-parameter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind, Unknown
from shardlint.facts import HeldTensor, OptimizerFacts, TensorSpec, known
from shardlint.names import counted

from ._held import Counterpart, counterparts, partitioned, stale, where

_FEW = 3
_LISTED = 50


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

    noun = "tensor"

    def subjects(self, facts: Facts) -> Iterator[HeldTensor | _Stale | Unknown]:
        """Held tensors that are live, and for each optimizer all of those that are not."""
        optimizer = facts.require(Section.OPTIMIZER)
        counterpart_of = counterparts(optimizer)
        gone: dict[int, list[HeldTensor]] = {}
        for tensor in stale(optimizer):
            gone.setdefault(optimizer.group_of(tensor).optimizer, []).append(tensor)
        whole = not any(parameter.requires_grad for parameter in optimizer.not_held())
        for number, tensors in gone.items():
            total = sum(1 for tensor in optimizer.held if optimizer.group_of(tensor).optimizer == number)
            yield _Stale(optimizer.optimizers[number].name, tensors, counterpart_of, total, whole)
        yield from (tensor for tensor in optimizer.held if tensor.parameter is not None)
        yield from (Unknown(reason) for reason in partitioned(optimizer))

    def judge(self, subject: HeldTensor | _Stale | Unknown, facts: Facts) -> Iterable[Finding]:
        if not isinstance(known(subject), _Stale):
            return ()
        return self.gone(facts.require(Section.OPTIMIZER), subject)  # type: ignore[arg-type]

    def gone(self, optimizer: OptimizerFacts, stale_ones: _Stale) -> Iterator[Finding]:
        """One finding for one mistake: each tensor by itself as long as they are few."""
        lost = [tensor for tensor in stale_ones.tensors if tensor.identity not in stale_ones.counterparts]
        if lost and stale_ones.whole:
            yield self.of_another_model(optimizer, stale_ones, lost)
            lost = []
        events: dict[str, list[HeldTensor]] = {}
        for tensor in stale_ones.tensors:
            was = stale_ones.counterparts.get(tensor.identity)
            if was is not None:
                spec = optimizer.specs[tensor.spec]
                events.setdefault(_event(tensor, spec, optimizer.specs[was.parameter.spec]), []).append(tensor)
        for event, tensors in events.items():
            if len(tensors) > _FEW:
                yield self.many(optimizer, stale_ones, event, tensors)
            else:
                lost = [*lost, *tensors]
        for tensor in lost:
            yield self.stale_tensor(optimizer, tensor, stale_ones.counterparts.get(tensor.identity))

    def of_another_model(self, optimizer: OptimizerFacts, stale_ones: _Stale, lost: list[HeldTensor]) -> Finding:
        found = counted(len(lost), "tensor")
        return self.finding(
            subject=stale_ones.name,
            kind=SubjectKind.MODEL,
            severity=Severity.INFO,
            message=f"{found} of its {stale_ones.total} belong to no module of the model, while every "
            "trainable parameter is held: if they are those of another model, lint both at once, "
            "as torch.nn.ModuleList([first, second])",
            evidence={"places": [where(optimizer, tensor) for tensor in lost[:_LISTED]], "count": len(lost)},
            key="another model",
        )

    def many(self, optimizer: OptimizerFacts, stale_ones: _Stale, event: str, tensors: list[HeldTensor]) -> Finding:
        names = [stale_ones.counterparts[tensor.identity].parameter.fqn for tensor in tensors]
        first = stale_ones.counterparts[tensors[0].identity]
        spec, live = optimizer.specs[tensors[0].spec], optimizer.specs[first.parameter.spec]
        return self.finding(
            subject=stale_ones.name,
            kind=SubjectKind.MODEL,
            message=f"built before the model was {event}: {len(tensors)} of its {stale_ones.total} tensors are not "
            f"parameters any more; by {first.by} the first one, {spec.text()}, was {first.parameter.fqn}, "
            f"{_cause(tensors[0], spec, live)}",
            evidence={"live": names[:_LISTED], "count": len(names), "of": stale_ones.total},
            key=event,
        )

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


@frozen
class _Stale:
    """
    The stale tensors of one optimizer, of its `total` tensors, with what they once were.

    `whole` says that every trainable parameter is held all the same.
    """

    name: str
    tensors: list[HeldTensor]
    counterparts: dict[int, Counterpart]
    total: int
    whole: bool


def _event(tensor: HeldTensor, spec: TensorSpec, live: TensorSpec) -> str:
    """What happened to the model after the optimizer was built, in a word."""
    if tensor.full_copy_of is not None:
        return "resharded after a step"
    if spec.shape != live.shape and len(spec.shape) == len(live.shape):
        return "resized"
    return "sharded" if spec.layout != live.layout else "materialized or its modules were replaced"


def _cause(tensor: HeldTensor, spec: TensorSpec, live: TensorSpec) -> str:
    """What probably happened, in words, with what the live parameter is like."""
    if tensor.full_copy_of is not None:
        return f"of which it is the full copy within a step (the optimizer was built there); live is {live.text()}"
    if spec.shape != live.shape and len(spec.shape) == len(live.shape):
        return f"which is now {live.text()} (resized or replaced since)"
    if spec.layout != live.layout:
        return f"which is now {live.text()} (sharded since)"
    return "which is another tensor now (replaced since, by to_empty or with its module)"
