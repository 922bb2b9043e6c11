"""D306 reduction-mixes-shards."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.analysis.model_config import EXPERT_COUNTS, config_number
from shardlint.boxes import PARTIAL, REPLICATE, boxes
from shardlint.facts import LayoutFacts, OwnershipFacts, RankDifference, ReductionFacts, ShardingFacts, known
from shardlint.names import pattern_of

from ._layouts import live, once, ranks_text


@frozen
class _Mixed:
    ranks: tuple[int, ...]
    reason: str


@frozen
class _Reduced:
    """A managed parameter, the names that ranks exchange, and what the boxes of each layout and reduction told."""

    fqn: str
    record: OwnershipFacts
    absent: dict[str, RankDifference]
    by_boxes: dict[tuple[int, tuple[int, ...]], _Mixed | str | None]


class ReductionMixesShards(Rule):
    """
    The gradient of a parameter is averaged over ranks that hold different parts of it.

    ## What it does
    Compares what every rank of a parameter's reduction held *before* data-parallel sharding: the boxes that tensor or
    expert parallelism gave it, the names of its parameters where ranks were compared, or, for a plain tensor of
    experts smaller than the config's number of experts, whether so many ranks can hold the same experts at all. Names
    of mesh axes play no part.

    ## Why it is unsafe
    Different experts (or different slices of one matrix) are averaged with each other in every step. They become the
    same expert; nothing raises.

    ## What to do
    Reduce the parameter over the ranks that hold the same part only: give its unit the mesh axis that replicates it
    (`efsdp`, the data-parallel axis inside the expert groups), not the whole data-parallel mesh.
    """

    code = "D306"
    name = "reduction-mixes-shards"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)
    related_config = ("ep_size", "fsdp_plan")

    noun = "parameter"

    def subjects(self, facts: Facts) -> Iterator[_Reduced]:
        sharding = facts.require(Section.SHARDING)
        differences = facts.ranks.differences if facts.ranks else ()
        parameters = [difference for difference in differences if difference.kind == "parameter"]
        absent = _exchanged([difference for difference in parameters if difference.field == "present"])
        by_boxes: dict[tuple[int, tuple[int, ...]], _Mixed | str | None] = {}
        for record in once(live(sharding.parameters)):
            if record.managed:
                yield _Reduced(record.fqn, record, absent, by_boxes)

    def judge(self, subject: _Reduced, facts: Facts) -> Iterator[Finding]:
        sharding, record = facts.require(Section.SHARDING), subject.record
        layout, reduction = sharding.layout_of(record), sharding.reduction_of(record)
        ranks = reduction.ranks if reduction is not None and reduction.ranks is not None else ()
        seen: _Mixed | str | None = None
        if len(ranks) > 1:
            key = (record.layout, ranks)
            if key not in subject.by_boxes:
                subject.by_boxes[key] = _by_boxes(sharding, layout, ranks)
            seen = subject.by_boxes[key]
            mixed = seen if isinstance(seen, _Mixed) else _by_names(record, subject.absent, ranks)
            mixed = mixed or _by_count(facts, record, layout, ranks)
            if mixed is not None:
                yield self.mixed(record, mixed, ranks)
                return
        if isinstance(seen, str):
            raise NotEvaluated(seen)
        known(record.fqn)  # a name that is not known hides what the comparison of ranks says of it
        if _untold(layout, reduction):
            raise NotEvaluated("it may be cut, and which ranks reduce which part is unknown")

    def mixed(self, record: OwnershipFacts, mixed: _Mixed, ranks: tuple[int, ...]) -> Finding:
        return self.finding(
            subject=record.fqn,
            owner=record.owner,
            message=f"averaged over {ranks_text(ranks)}, which hold different parts of it: {mixed.reason}",
            evidence={"reduced_over": ranks, "other_parts_on": mixed.ranks},
        )


def _untold(layout: LayoutFacts, reduction: ReductionFacts | None) -> bool:
    """Whether a parameter that ranks may hold different parts of is reduced over ranks that are not told."""
    cut = any(placement.kind not in (REPLICATE, PARTIAL) for placement in layout.source_placements)
    return "source" in layout.unknown or (cut and (reduction is None or reduction.ranks is None))


def _by_boxes(sharding: ShardingFacts, layout: LayoutFacts, ranks: tuple[int, ...]) -> _Mixed | str | None:
    """Which of the ranks held another part before data-parallel sharding; a text says why that is not known."""
    mesh = sharding.mesh(layout.source_mesh)
    if mesh is None:
        return None
    if mesh.coordinate is None:
        return "where this rank is on the mesh that cuts it is unknown" if _untold(layout, None) else None
    try:
        mine = boxes(layout.global_shape, mesh.shape, mesh.coordinate, layout.source_placements)
        others = {
            rank: boxes(layout.global_shape, mesh.shape, place, layout.source_placements)
            for rank in ranks
            if (place := mesh.coordinate_of(rank)) is not None
        }
    except ValueError as error:  # a placement that is not understood
        return str(error)
    different = tuple(rank for rank, other_boxes in others.items() if other_boxes != mine)
    if not different:
        return None
    other = " and ".join(box.text() for box in others[different[0]]) or "nothing"
    return _Mixed(different, f"here {' and '.join(box.text() for box in mine)}, on rank {different[0]} {other}")


def _exchanged(absent: list[RankDifference]) -> dict[str, RankDifference]:
    """
    Names that some ranks lack while they have others of the same pattern: `experts.0` here, `experts.4` there.

    A parameter that is merely missing somewhere is not a shard of anything: ranks-disagree says so.
    """
    values: dict[tuple[str, tuple[int, ...]], set[str]] = {}
    for difference in absent:
        values.setdefault((pattern_of(difference.fqn), difference.ranks), set()).add(difference.value)
    return {
        difference.fqn: difference
        for difference in absent
        if len(values[pattern_of(difference.fqn), difference.ranks]) > 1
    }


def _by_names(record: OwnershipFacts, absent: dict[str, RankDifference], ranks: tuple[int, ...]) -> _Mixed | None:
    difference = absent.get(known(record.fqn))
    if difference is None:
        return None
    without = tuple(rank for rank in _ranks_without(difference) if rank in ranks)
    return _Mixed(without, f"rank {without[0]} has no parameter of that name") if without else None


def _ranks_without(difference: RankDifference) -> tuple[int, ...]:
    return difference.ranks if difference.value == "absent" else (difference.reference_rank,)


def _by_count(facts: Facts, record: OwnershipFacts, layout: LayoutFacts, ranks: tuple[int, ...]) -> _Mixed | None:
    """
    By the pigeonhole: `world * held / declared` ranks can hold the same experts, so more of them cannot.

    Only for plain tensors that stack experts in their first dim; a distributed tensor says itself what it holds.
    """
    declared = config_number(facts.model.config if facts.model else None, *EXPERT_COUNTS)
    stacked = "experts" in record.fqn.split(".") and len(layout.global_shape) > 2
    if declared is None or layout.source_mesh is not None or not stacked:
        return None
    experts = layout.global_shape[0]
    if experts >= declared or declared % experts or len(ranks) * declared <= facts.environment.world_size * experts:
        return None
    return _Mixed(
        ranks, f"a rank holds {experts} of {declared} experts, and so many ranks cannot all hold the same ones"
    )
