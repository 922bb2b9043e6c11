"""
Replicas: ranks that hold the same part of the same tensor.

Rank 0 learns which shards every rank holds, as eight bytes each, and makes one rank of every group its leader. The
others' bits are compared with the leader's by digest, so that each byte of the checkpoint is read once per job.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
from attrs import field, frozen

from ..ranks.exchange import Exchange
from .compare.live_tensor import LiveBytes
from .compare.threads import Options, thread_count
from .compare.tiles import Limits, cut, nest_of
from .relations import Holdings, Judgement, Relations, judged
from .result import ReplicaGroup
from .shards import Shard, is_empty, shard_key
from .symbolic.blocks import whole


@frozen(kw_only=True)
class Orders:
    """
    What rank 0 tells one rank: `digests` are the names whose digest it must give, `followed` those that another rank
    compares for it.
    """

    digests: tuple[str, ...] = ()
    followed: tuple[str, ...] = ()


@frozen(kw_only=True)
class Groups:
    """
    Known to rank 0 only: the ranks that hold each shard, the leader first. Keys are (name, key of the shard).

    `holdings` is what each rank said of its shards.
    """

    members: dict[tuple[str, str], tuple[int, ...]] = field(factory=dict)
    holdings: tuple[Holdings, ...] = ()

    @property
    def by_name(self) -> dict[str, list[tuple[int, ...]]]:
        """The groups of each tensor."""
        found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        for (name, _), ranks in self.members.items():
            found[name].append(ranks)
        return found


def short(text: str) -> str:
    """Eight bytes that stand for a text, in hexadecimal."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def assign(exchange: Exchange, shards: Iterable[Shard], relations: Relations) -> tuple[Orders, Groups]:
    """Find the replica groups. A collective call: every rank, also one with no shards, makes it."""
    mine = {shard.name: (shard, short(shard_key(shard))) for shard in shards if not is_empty(shard)}
    blobs = exchange.gather(msgspec.json.encode(relations.holdings(mine, exchange.rank)))
    groups = _groups([msgspec.json.decode(blob, type=Holdings) for blob in blobs])
    orders = [_orders(groups, rank) for rank in range(exchange.world_size)] if blobs else []
    given = exchange.scatter([msgspec.json.encode(order) for order in orders])
    return msgspec.json.decode(given, type=Orders), groups


def _groups(holdings: Sequence[Holdings]) -> Groups:
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, said in enumerate(holdings):
        for name, held in said.shards.items():
            members[name, held.key].append(rank)
    found = {}
    for number, (at, ranks) in enumerate(sorted(members.items())):
        if len(ranks) > 1:  # leaders take turns, so that reading is shared
            turn = number % len(ranks)
            found[at] = (*ranks[turn:], *ranks[:turn])
    return Groups(members=found, holdings=tuple(holdings))


def _orders(groups: Groups, rank: int) -> Orders:
    mine = [(name, ranks) for (name, _), ranks in groups.members.items() if rank in ranks]
    return Orders(
        digests=tuple(name for name, _ in mine),
        followed=tuple(name for name, ranks in mine if ranks[0] != rank),
    )


def digest_of(shard: Shard, options: Options) -> str:
    """
    Sixteen bytes that stand for the bits of a shard in row-major order, whatever its strides are.

    Raises `KeyboardInterrupt` when the run was asked to end.
    """
    live = LiveBytes(shard.name, shard.held)
    state = hashlib.blake2b(digest_size=16)
    for block in whole("", live.shape):
        for tile in cut(nest_of(block, live.strides, live.base), Limits(live.item)):
            if options.stopped:
                raise KeyboardInterrupt
            options.beat()
            state.update(np.ascontiguousarray(live.patterns(tile)).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def digests(shards: Iterable[Shard], names: Iterable[str], options: Options) -> dict[str, str]:
    """The digests of the named shards, over threads."""
    wanted = set(names)
    chosen = [shard for shard in shards if shard.name in wanted]
    take = functools.partial(digest_of, options=options)
    with ThreadPoolExecutor(thread_count(options)) as pool:
        return dict(zip((shard.name for shard in chosen), pool.map(take, chosen), strict=True))


def gathered(exchange: Exchange, mine: dict[str, str]) -> list[dict[str, str]]:
    """The digests of all ranks, on rank 0; an empty list elsewhere. A collective call."""
    return [msgspec.json.decode(blob, type=dict[str, str]) for blob in exchange.gather(msgspec.json.encode(mine))]


def judgement(groups: Groups, digests: Sequence[dict[str, str]]) -> Judgement:
    """What the digests of all ranks say of replicas, on rank 0; nothing elsewhere."""
    return judged(groups.members, groups.holdings, digests) if digests else Judgement()


def differing(groups: Groups, found: Sequence[dict[str, str]]) -> tuple[ReplicaGroup, ...]:
    """
    The groups whose bits are not their leader's, on rank 0; an empty tuple elsewhere.

    A rank that failed or was interrupted gives no digest: it says so itself, and its bits are not judged.
    """
    if not found:
        return ()
    out = []
    for (name, _), ranks in groups.members.items():
        reference = found[ranks[0]].get(name)
        others = tuple(sorted(rank for rank in ranks[1:] if found[rank].get(name, reference) != reference))
        if others and reference is not None:
            out.append(ReplicaGroup(name=name, reference=ranks[0], ranks=others))
    return tuple(out)
