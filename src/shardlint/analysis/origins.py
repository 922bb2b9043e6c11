"""
Where did the value of a live tensor come from? Answered from the facts. Public; no torch.

Only what the facts tell is said; where they tell nothing the answer is `unknown`, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from ..facts import EMPTY, Facts, FrozenDict, TensorFacts
from .ties import wanted_pairs

KINDS = ("checkpoint", "tied", "recomputed", "initialiser", "never-written", "partly-written", "meta", "unknown")


@frozen(kw_only=True)
class TensorOrigin:
    """
    Where the value of the live tensor `fqn` came from.

    `kind` is one of `KINDS`. `keys` and `files` are those of a checkpoint, `through` the conversion's operations;
    `detail` says in words what the facts tell.
    """

    fqn: str
    kind: str
    keys: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    detail: str = ""

    def text(self) -> str:
        """The origin in words, for messages."""
        if self.kind != "checkpoint":
            return f"{self.kind}: {self.detail}" if self.detail else self.kind
        where = f" in {', '.join(self.files)}" if self.files else ""
        through = f" through {', '.join(self.through)}" if self.through else ""
        return f"checkpoint: {', '.join(self.keys)}{where}{through}"

    def as_mapping(self) -> FrozenDict:
        """The origin as plain data, without what is empty."""
        found = {"kind": self.kind, "keys": self.keys, "files": self.files, "through": self.through}
        return FrozenDict({key: value for key, value in {**found, "detail": self.detail}.items() if value})


def origins(facts: Facts) -> Mapping[str, TensorOrigin]:
    """The origin of every live tensor, by its first name; empty without a model."""
    if facts.model is None:
        return EMPTY
    sources = _Sources(facts)
    return {tensor.fqn: sources.origin(tensor) for tensor in facts.model.tensors}


class _Sources:
    """What the sections say of each name, looked up once."""

    def __init__(self, facts: Facts) -> None:
        values, load = facts.values, facts.load
        self.unwritten = (
            {tensor.fqn: tensor for tensor in values.tensors if tensor.unwritten} if values is not None else {}
        )
        self.derived = {item.fqn: item for item in values.derived} if values is not None else {}
        self.plans = facts.plan.tensor_by_name() if facts.plan is not None else {}
        self.reported = load is not None and load.reported
        self.missing = set(load.missing) | {item.key for item in load.mismatched} if load is not None else set()
        self.ties = wanted_pairs(facts.model, facts.contract) if facts.model is not None else {}

    def origin(self, tensor: TensorFacts) -> TensorOrigin:
        """The first thing that is known, the surest first."""
        fqn = tensor.fqn
        if tensor.is_meta:
            return TensorOrigin(fqn=fqn, kind="meta", detail="it has no storage yet")
        if fqn in self.unwritten:
            seen = self.unwritten[fqn]
            if seen.unwritten == seen.elements:
                return TensorOrigin(fqn=fqn, kind="never-written", detail="nobody wrote it since the watch began")
            return TensorOrigin(fqn=fqn, kind="partly-written", detail=f"{seen.unwritten} of {seen.elements} unwritten")
        if fqn in self.derived and self.derived[fqn].status in ("equal", "low-precision"):
            return TensorOrigin(fqn=fqn, kind="recomputed", detail=f"it is what {self.derived[fqn].recipe} gives")
        return self.loaded(tensor) or self.other(tensor)

    def loaded(self, tensor: TensorFacts) -> TensorOrigin | None:
        """The checkpoint's key, if a load is on record that did not report the tensor missing."""
        plans = (self.plans[name] for name in tensor.aliases if name in self.plans)
        planned = next((plan for plan in plans if plan.status == "loaded"), None)
        if planned is None or not self.reported or not self.missing.isdisjoint(tensor.aliases):
            return None
        return TensorOrigin(
            fqn=tensor.fqn,
            kind="checkpoint",
            keys=planned.sources,
            files=planned.files,
            through=planned.operations,
        )

    def other(self, tensor: TensorFacts) -> TensorOrigin:
        """Tied ends, and what the load report says was missing."""
        source = next((self.ties[name] for name in tensor.aliases if name in self.ties), None)
        if source is not None and source in tensor.aliases:
            return TensorOrigin(fqn=tensor.fqn, kind="tied", detail=f"one tensor with {source}")
        if not self.missing.isdisjoint(tensor.aliases):
            return TensorOrigin(fqn=tensor.fqn, kind="initialiser", detail="the load report calls it missing")
        return TensorOrigin(fqn=tensor.fqn, kind="unknown", detail="no load is on record" if not self.reported else "")
