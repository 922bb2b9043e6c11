"""
Which ranks hold replicas of one tensor: told by what relates them, not by equal names.

A mesh or a wrapper relates the ranks that it spans. Ranks that share some mesh or wrapper build one model, so that a
tensor which lies on none of them is a replica too. Of ranks that share nothing (pipeline stages that count their layers
from zero, shards that a library keeps as plain tensors) only equal values say that they hold replicas.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from ..collect.sharding import collect_ownership, facts_of
from ..facts.sharding import OwnershipFacts, ShardingFacts
from ..introspect.walk import Walk, walk
from ..names import ordered, ranges
from ..ranks.compare import groups_of, numbers_of
from .result import ReplicaGroup
from .shards import Shard


@frozen(kw_only=True)
class HeldPart:
    """
    A shard that a rank holds: its key, the number of the set of ranks that a mesh or wrapper relates it to (-1: none).

    `told` says whether equal values are evidence (those of a vector may be constant), `loose` that the rank may hold
    another tensor of that name on purpose, `buffer` that every rank must have it alike.
    """

    key: str
    related: int = -1
    told: bool = False
    loose: bool = False
    buffer: bool = False


@frozen(kw_only=True)
class Holdings:
    """What one rank holds, by name; the sets of ranks, as ranges; and the ranks that it shares something with."""

    shards: dict[str, HeldPart] = field(factory=dict)
    relations: tuple[str, ...] = ()
    peers: str = "0"


@frozen(kw_only=True)
class Judgement:
    """What the digests say: replicas that differ, and tensors that differ where nothing says that they are replicas."""

    differing: tuple[ReplicaGroup, ...] = ()
    undecided: tuple[str, ...] = ()
    judged: int = 0


@frozen(kw_only=True)
class Relations:
    """What relates the tensors of a model to other ranks. `left_out` are no replicas of anything, by name."""

    peers: tuple[int, ...] = ()
    direct: Mapping[str, tuple[int, ...]] = field(factory=dict)
    left_out: frozenset[str] = frozenset()
    loose: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()

    def keeps(self, shard: Shard) -> bool:
        """Whether the shard may be a replica of another rank's."""
        return self.left_out.isdisjoint(shard.names)

    def holdings(self, shards: Mapping[str, tuple[Shard, str]], rank: int) -> Holdings:
        """What this rank says of its shards, given by name with their keys."""
        numbers: dict[str, int] = {}
        held = {}
        for name, (shard, key) in shards.items():
            related = next((self.direct[alias] for alias in shard.names if alias in self.direct), ())
            number = numbers.setdefault(ranges(related), len(numbers)) if related else -1
            held[name] = HeldPart(
                key=key,
                related=number,
                told=len(shard.global_shape) > 1,
                loose=not self.loose.isdisjoint(shard.names),
                buffer=not self.buffers.isdisjoint(shard.names),
            )
        peers = ranges(sorted({rank, *self.peers}))
        return Holdings(shards=held, relations=tuple(numbers), peers=peers)


def relations_of(model: Any) -> Relations:
    """What relates the tensors of `model` to other ranks."""
    walked = walk(model)
    sharding = facts_of(collect_ownership(walked))
    peers = {number for mesh in sharding.meshes for number in mesh.ranks}
    peers.update(number for reduction in sharding.reductions for number in reduction.ranks or ())
    direct, left_out, loose = {}, set(_statistics(walked)), set()
    for record in sharding.parameters:
        if _is_part(record):
            left_out.add(record.fqn)
        elif not record.managed and any("expert" in part for part in record.fqn.lower().split(".")):
            loose.add(record.fqn)
        related = _related(sharding, record)
        if related:
            direct[record.fqn] = related
    buffers = {name for tensor in walked.tensors if tensor.kind == "buffer" for name in tensor.names}
    return Relations(
        peers=tuple(sorted(peers)),
        direct=direct,
        left_out=frozenset(left_out),
        loose=frozenset(loose),
        buffers=frozenset(buffers - left_out),
    )


def _is_part(record: OwnershipFacts) -> bool:
    """Whether a library marks the parameter as one of several parts, or as another rank's business."""
    marks = record.marks
    cut = marks.get("tensor_model_parallel") is True or int(marks.get("partition_dim", -1)) >= 0
    return cut or marks.get("allreduce") is False


def _related(sharding: ShardingFacts, record: OwnershipFacts) -> tuple[int, ...]:
    """The ranks of the parameter's own mesh, and those that its gradient is reduced over."""
    mesh, reduction = sharding.mesh(sharding.layout_of(record).mesh), sharding.reduction_of(record)
    ranks = set(mesh.ranks if mesh is not None else ())
    ranks.update((reduction.ranks or ()) if reduction is not None else ())
    return tuple(sorted(ranks)) if len(ranks) > 1 else ()


def _statistics(walked: Walk) -> Iterator[str]:
    """Running statistics once a batch was seen: each rank's are those of its own batches until DDP sends them."""
    for module in walked.modules:
        kinds = {base.__name__ for base in type(module.module).__mro__}
        tracked = getattr(module.module, "num_batches_tracked", None)
        if "_NormBase" in kinds and "SyncBatchNorm" not in kinds and tracked is not None and int(tracked) > 0:
            own = ("running_mean", "running_var", "num_batches_tracked")
            yield from (f"{prefix}.{name}" if prefix else name for prefix in module.names for name in own)


def judged(
    members: Mapping[tuple[str, str], Sequence[int]], holdings: Sequence[Holdings], digests: Sequence[Mapping[str, str]]
) -> Judgement:
    """
    Judge the digests of shards that several ranks hold, given by name and key.

    A rank without a digest (it failed, or was interrupted) is not judged.
    """
    group_of = {
        rank: number
        for number, group in enumerate(groups_of([numbers_of(item.peers) for item in holdings]))
        for rank in group
    }
    related = [[frozenset(numbers_of(text)) for text in item.relations] for item in holdings]
    differing, open_groups, evidence, count = [], [], Counter[bool](), 0
    for (name, _), ranks in members.items():
        there = [rank for rank in sorted(ranks) if name in digests[rank]]
        by_rank = {rank: digests[rank][name] for rank in there}
        sure = list(_sure(name, there, holdings, related, group_of))
        found = [group for part in sure if (group := _group(name, {rank: by_rank[rank] for rank in part})) is not None]
        differing += found
        count += any(len(part) > 1 for part in sure)
        if len(sure) > 1 and not found:
            across = _group(name, by_rank)
            held = holdings[there[0]].shards[name]
            if held.told and not held.loose:
                evidence[across is None] += 1
            open_groups += [(held, across)] if across is not None else []
    replicas = evidence[True] > 0 and evidence[True] >= evidence[False]
    differing += [group for held, group in open_groups if replicas and not held.loose]
    undecided = [group.name for held, group in open_groups if not replicas or held.loose]
    differing += list(_buffers(holdings, group_of))
    count += len(evidence) and evidence[True] + (evidence[False] if replicas else 0)
    return Judgement(differing=tuple(differing), undecided=ordered(undecided), judged=count)


def _sure(
    name: str,
    ranks: Sequence[int],
    holdings: Sequence[Holdings],
    related: Sequence[Sequence[frozenset[int]]],
    group_of: Mapping[int, int],
) -> Iterator[list[int]]:
    """The ranks divided into those that surely hold replicas of each other."""
    left = list(ranks)
    while left:
        part, new = [left[0]], [left.pop(0)]
        while new:
            rank = new.pop()
            held = holdings[rank].shards[name]
            near = related[rank][held.related] if held.related >= 0 else frozenset()
            reached = [
                other for other in left if other in near or (not held.loose and group_of[other] == group_of[rank])
            ]
            left = [other for other in left if other not in reached]
            part += reached
            new += reached
        yield sorted(part)


def _group(name: str, digests: Mapping[int, str]) -> ReplicaGroup | None:
    """The ranks whose bits are not those of most; None when all are equal. Of equally many the lowest rank decides."""
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, digest in digests.items():
        ranks_of[digest].append(rank)
    if len(ranks_of) < 2:
        return None
    usual = max(ranks_of.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    others = tuple(sorted(rank for rank in digests if rank not in usual))
    return ReplicaGroup(name=name, reference=usual[0], ranks=others)


def _buffers(holdings: Sequence[Holdings], group_of: Mapping[int, int]) -> Iterator[ReplicaGroup]:
    """Persistent buffers that ranks which share something do not have alike: absent, or of another shape or dtype."""
    members: dict[int, list[int]] = defaultdict(list)
    for rank, number in group_of.items():
        members[number].append(rank)
    for ranks in members.values():
        names = {name for rank in ranks for name, held in holdings[rank].shards.items() if held.buffer}
        for name in ordered(names) if len(ranks) > 1 else ():
            keys = {rank: _key(holdings[rank], name) for rank in ranks}
            group = _group(name, keys)
            if group is not None:
                yield evolve(group, what="absent" if "" in keys.values() else "shape")


def _key(holdings: Holdings, name: str) -> str:
    return holdings.shards[name].key if name in holdings.shards else ""
