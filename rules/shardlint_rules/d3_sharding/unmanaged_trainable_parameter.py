"""D304 unmanaged-trainable-parameter."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.facts import OwnershipFacts, ShardingFacts
from shardlint.names import glob_matches

from ._words import once, ranks_text, sharding_of


@frozen(kw_only=True)
class UnmanagedOptions:
    """`replicated`: globs of parameters whose gradients the training loop synchronises by itself."""

    replicated: tuple[str, ...] = ()


class UnmanagedTrainableParameter(Rule):
    """
    A trainable parameter is outside every gradient synchronisation while others are inside one.

    ## What it does
    Reports parameters that need a gradient and that no unit manages, in a model whose other parameters are reduced
    over several ranks: ignored parameters that train, modules added after wrapping (adapters), a parameter that
    was replaced after its unit was wrapped, a model whose root was never wrapped. Frozen parameters are not reported,
    nor distributed tensors whose own mesh spans the ranks of the reduction, nor names that match the option
    `replicated`.

    ## Why it is unsafe
    Each rank updates its own copy from its own batch. The copies drift apart from the first step on; nothing
    raises, and a checkpoint keeps whichever copy the saving rank held.

    ## What to do
    Add the modules before wrapping, wrap the root, take the parameter out of `ignored_params`, or freeze it.
    When the loop averages its gradient by itself, say so in the option `replicated`.
    """

    code = "D304"
    name = "unmanaged-trainable-parameter"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)
    related_config = ("ignored_params", "fsdp_plan")
    options_type = UnmanagedOptions

    def check(self, facts: Facts) -> Iterator[Finding]:
        sharding = sharding_of(facts)
        found = [record for record in once(sharding.parameters) if not record.managed and self.trains(record)]
        if not sharding.units or not found:
            return
        ranks = _reduced_over(sharding)
        if ranks is None and facts.environment.world_size > 1:
            raise NotEvaluated("the ranks over which the units reduce are unknown")
        replaced = {record.fqn: record for record in sharding.parameters if record.replaced}
        for record in found:
            if ranks and not _spans(sharding, record, ranks):
                yield self.unmanaged(record, replaced.get(record.fqn), ranks)

    def trains(self, record: OwnershipFacts) -> bool:
        return record.requires_grad and not any(glob_matches(glob, record.fqn) for glob in self.options.replicated)

    def unmanaged(self, record: OwnershipFacts, before: OwnershipFacts | None, ranks: tuple[int, ...]) -> Finding:
        cause = "no unit manages it"
        if before is not None:
            cause = f"the unit {before.owner} still manages the tensor that stood here when it was wrapped"
        return self.finding(
            subject=record.fqn,
            owner=record.owner if before is None else before.owner,
            message=f"trainable, but {cause}; the other gradients are reduced over {ranks_text(ranks)}",
            evidence={"ranks": ranks, "replaced_in": None if before is None else before.owner},
        )


def _reduced_over(sharding: ShardingFacts) -> tuple[int, ...] | None:
    """The ranks of all reductions together: None when unknown, empty when no unit reduces over several ranks."""
    known = [item.ranks for item in sharding.reductions if item.ranks is not None]
    if not known:
        return None
    return tuple(sorted({rank for ranks in known if len(ranks) > 1 for rank in ranks}))


def _spans(sharding: ShardingFacts, record: OwnershipFacts, ranks: tuple[int, ...]) -> bool:
    mesh = sharding.mesh(sharding.layout_of(record).mesh)
    return mesh is not None and set(ranks) <= set(mesh.ranks)
