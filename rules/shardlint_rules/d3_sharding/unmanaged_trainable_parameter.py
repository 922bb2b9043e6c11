"""D304 unmanaged-trainable-parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from shardlint import WHOLE, Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import DENSE, OwnershipFacts, ShardingFacts, UnitFacts, is_known, known
from shardlint.names import counted, glob_matches, ranges

from ._layouts import live, once, ranks_text, refuse_strange


@frozen(kw_only=True)
class UnmanagedOptions:
    """`replicated`: globs of parameters whose gradients the training loop synchronises by itself."""

    replicated: tuple[str, ...] = ()


@frozen
class _Trainable:
    """
    A parameter that trains: whether several ranks work together, the ranks that units reduce over (None when unknown).

    `wider` are the ranks of the widest reduction when its own is over a part of them; `before` is the record of the
    tensor that stood in its place when its unit was wrapped.
    """

    fqn: str
    record: OwnershipFacts
    several: bool
    ranks: tuple[int, ...] | None
    wider: tuple[int, ...]
    before: OwnershipFacts | None


class UnmanagedTrainableParameter(Rule):
    """
    A trainable parameter is outside the gradient synchronisation, or in a part of it only, while others are inside.

    ## What it does
    Reports parameters that need a gradient and that no unit manages, in a model whose other parameters are reduced
    over several ranks: ignored parameters that train, modules added after wrapping (adapters), a parameter that
    was replaced after its unit was wrapped, a model whose root was never wrapped. Frozen parameters are not reported,
    nor distributed tensors whose own mesh spans the ranks of the reduction, nor names that match the option
    `replicated`.

    Reports dense parameters too whose gradient is summed over a part of the ranks that others are summed over, when
    neither experts nor tensor parallelism account for the rest: a unit that was given the shard axis of a mesh where
    the others have its replicate axis as well. So are units whose ranks overlap with those of the others and are
    neither a part of them nor all of them (a root on the tensor-parallel axis), units whose divisor is not that of the
    others over the same ranks, and parameters that were unfrozen after DDP was made, which knows only what was
    trainable then. Sets of ranks that hold the same model with the same first values and never exchange a gradient are
    a warning when their meshes were cut from a larger one without an axis for pipeline stages, else information.

    ## Why it is unsafe
    Each rank updates its own copy from its own batch. The copies drift apart from the first step on; nothing
    raises, and a checkpoint keeps whichever copy the saving rank held.

    ## What to do
    Add the modules before wrapping, wrap the root, take the parameter out of `ignored_params`, or freeze it. Give every
    dense unit the same mesh.
    When the loop averages its gradient by itself, say so in the option `replicated`.
    """

    code = "D304"
    name = "unmanaged-trainable-parameter"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)
    related_config = ("ignored_params", "fsdp_plan")
    options_type = UnmanagedOptions

    noun = "trainable parameter"

    def subjects(self, facts: Facts) -> Iterator[Any]:
        sharding = facts.require(Section.SHARDING)
        if not sharding.units:
            return
        several = facts.environment.world_size > 1 or any(len(mesh.ranks) > 1 for mesh in sharding.meshes)
        wider = {id(record): widest for record, widest in _partly(sharding)}
        replaced = {record.fqn: record for record in sharding.parameters if record.replaced}
        ranks = _reduced_over(sharding)
        for record in once(sharding.parameters):
            if self.trains(record):
                yield _Trainable(
                    record.fqn, record, several, ranks, wider.get(id(record), ()), replaced.get(record.fqn)
                )
        if any(self.trains(record) for record in sharding.parameters):
            yield WHOLE

    def judge(self, subject: Any, facts: Facts) -> Iterator[Finding]:
        if subject is WHOLE:
            yield from self.units(facts)
        else:
            yield from self.parameter(subject, facts)

    def units(self, facts: Facts) -> Iterator[Finding]:
        """What only a look at all units tells: ranks that overlap, unlike divisors, late unfreezing, twins."""
        sharding = facts.require(Section.SHARDING)
        yield from self.overlapping(sharding)
        yield from self.unlike_divisors(sharding)
        yield from self.unfrozen(sharding)
        yield from self.apart(facts)

    def parameter(self, subject: _Trainable, facts: Facts) -> Iterator[Finding]:
        """What is wrong with one parameter."""
        sharding, record = facts.require(Section.SHARDING), subject.record
        if subject.wider:
            yield self.partly(sharding, record, subject.wider)
        elif record.managed:
            reduction = sharding.reduction_of(record)
            if subject.several and (reduction is None or reduction.ranks is None):
                raise NotEvaluated("the ranks over which the units reduce are unknown")
            known(record.domain)
        elif subject.ranks is None and subject.several:
            raise NotEvaluated("the ranks over which the units reduce are unknown")
        elif subject.ranks and not _spans(sharding, record, subject.ranks):
            yield self.unmanaged(record, subject.before, subject.ranks)
        elif subject.ranks:
            refuse_strange(sharding.layout_of(record))

    def overlapping(self, sharding: ShardingFacts) -> Iterator[Finding]:
        """Dense parameters whose ranks overlap with those of most others, and are neither a part nor a superset."""
        reduced = [(record, ranks) for record, ranks in _dense_reduced(sharding) if len(ranks) > 1]
        units = Counter(ranks for ranks in {record.owner: ranks for record, ranks in reduced}.values())
        if len(units) < 2 or _marked(sharding):
            return
        usual = max(units, key=lambda ranks: (units[ranks], len(ranks)))
        for record, ranks in reduced:
            nested = set(ranks) <= set(usual) or set(usual) <= set(ranks)
            if not nested and self.trains(record):
                yield self.partly(sharding, record, usual)

    def unlike_divisors(self, sharding: ShardingFacts) -> Iterator[Finding]:
        """Dense units that divide the sum over the same ranks by another number than most others do."""
        dense = {record.unit for record, _ in _dense_reduced(sharding) if self.trains(record)}
        by_ranks: dict[tuple[int, ...], list[tuple[UnitFacts, float]]] = {}
        for index, unit in enumerate(sharding.units):
            reduction = None if unit.reduction is None else sharding.reductions[unit.reduction]
            if index in dense and reduction is not None and reduction.ranks and reduction.divisor is not None:
                by_ranks.setdefault(reduction.ranks, []).append((unit, reduction.divisor))
        for ranks, units in by_ranks.items():
            usual = Counter(divisor for _, divisor in units).most_common(1)[0][0]
            for unit, divisor in units:
                if divisor != usual:
                    yield self.finding(
                        subject=unit.name,
                        kind=SubjectKind.UNIT,
                        owner=unit.owner,
                        message=f"its gradients are divided by {divisor:g}, those of the other units over "
                        f"{ranks_text(ranks)} by {usual:g}",
                        evidence={"divisor": divisor, "usual": usual, "ranks": ranks},
                        key="divisor",
                    )

    def unfrozen(self, sharding: ShardingFacts) -> Iterator[Finding]:
        """Wrappers that reduce fewer parameters than train in them now."""
        for index, unit in enumerate(sharding.units):
            if unit.reduced is None:
                continue
            training = [record for record in once(live(sharding.of_unit(index))) if self.trains(record)]
            if unit.reduced < len(training):
                yield self.finding(
                    subject=unit.name,
                    kind=SubjectKind.UNIT,
                    owner=unit.owner,
                    message=f"it averages {unit.reduced} of its {counted(len(training), 'trainable parameter')}: "
                    f"{len(training) - unit.reduced} did not need a gradient when it was made",
                    evidence={"reduced": unit.reduced, "trainable": len(training)},
                    key="reduced",
                )

    def apart(self, facts: Facts) -> Iterator[Finding]:
        """Sets of ranks that hold one model and exchange nothing."""
        sharding = facts.require(Section.SHARDING)
        trains = any(record.managed and self.trains(record) for record in sharding.parameters)
        if facts.ranks is None or not trains:
            return
        severity = Severity.WARNING if _cut_from_a_data_mesh(sharding) else Severity.INFO
        for groups in facts.ranks.twins:
            if not any(facts.environment.rank in group for group in groups):
                continue
            names = " and ".join(ranges(group) for group in groups)
            yield self.finding(
                subject=f"ranks {names}",
                kind=SubjectKind.RANK,
                severity=severity,
                ranks=tuple(sorted(rank for group in groups for rank in group)),
                message=f"the ranks {names} hold the same model with the same first values, and never exchange a "
                "gradient" + ("" if severity is Severity.WARNING else ", unless they are stages of a pipeline"),
                evidence={"groups": groups},
                key="apart",
            )

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

    def partly(self, sharding: ShardingFacts, record: OwnershipFacts, wider: tuple[int, ...]) -> Finding:
        reduction = sharding.reduction_of(record)
        ranks = reduction.ranks if reduction is not None and reduction.ranks is not None else ()
        return self.finding(
            subject=record.fqn,
            owner=record.owner,
            message=f"trainable, but reduced over {ranks_text(ranks)} only; others are over {ranks_text(wider)}",
            evidence={"ranks": wider, "reduced_over": ranks},
        )


def _cut_from_a_data_mesh(sharding: ShardingFacts) -> bool:
    """Whether the meshes leave axes of a larger mesh out, and none of those is called as pipeline stages are."""
    beyond = {axis.lower() for mesh in sharding.meshes for axis in mesh.beyond}
    return bool(beyond) and not any(axis.startswith(("pp", "pipe", "stage")) for axis in beyond)


def _partly(sharding: ShardingFacts) -> Iterator[tuple[OwnershipFacts, tuple[int, ...]]]:
    """
    Dense parameters that are reduced over a part of what another dense one is, with the ranks of the widest.

    Where tensor parallelism spans the missing ranks, replicas get one gradient there without a reduction. How far it
    spans is told by distributed tensors; libraries that only mark their parameters do not tell, and are left alone.
    """
    if _marked(sharding):
        return
    meshes = [sharding.mesh(layout.source_mesh) for layout in sharding.layouts]
    spanned = max((len(mesh.ranks) for mesh in meshes if mesh is not None), default=1)
    reduced = _dense_reduced(sharding)
    widest = max((ranks for _, ranks in reduced), key=len, default=())
    for record, ranks in reduced:
        if set(ranks) < set(widest) and len(ranks) * spanned < len(widest):
            yield record, widest


def _marked(sharding: ShardingFacts) -> bool:
    """Whether parameters are marked as parts of a tensor-parallel whole: then nothing tells how far it spans."""
    return any(record.marks.get("tensor_model_parallel") for record in sharding.parameters)


def _dense_reduced(sharding: ShardingFacts) -> list[tuple[OwnershipFacts, tuple[int, ...]]]:
    """The dense parameters that some unit reduces, with the ranks of the reduction where they are known."""
    managed = [record for record in once(live(sharding.parameters)) if record.managed]
    dense = [record for record in managed if is_known(record.domain) and record.domain == DENSE]
    dense = [record for record in dense if not any("expert" in part for part in record.fqn.lower().split("."))]
    reduced = [(record, sharding.reduction_of(record)) for record in dense]
    return [
        (record, reduction.ranks)
        for record, reduction in reduced
        if reduction is not None and reduction.ranks is not None
    ]


def _reduced_over(sharding: ShardingFacts) -> tuple[int, ...] | None:
    """The ranks of all reductions together: None when unknown, empty when no unit reduces over several ranks."""
    known = [reduction.ranks for reduction in sharding.reductions if reduction.ranks is not None]
    if not known:
        return None
    return tuple(sorted({rank for ranks in known if len(ranks) > 1 for rank in ranks}))


def _spans(sharding: ShardingFacts, record: OwnershipFacts, ranks: tuple[int, ...]) -> bool:
    mesh = sharding.mesh(sharding.layout_of(record).mesh)
    return mesh is not None and set(ranks) <= set(mesh.ranks)
