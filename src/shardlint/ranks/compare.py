"""
What the ranks of a job tell each other about their models: digests first, details only where they differ.

Every rank says sixteen digests of its facts, which ranks it shares a mesh or a reduction with, and digests of what is
judged for the job as a whole. Rank 0 compares ranks that share one; of those that differ it asks one for the rows
behind the digests that differ.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from attrs import evolve, field, frozen

from ..facts import EMPTY, Facts, RankDifference, RanksFacts
from ..facts.sharding import ShardingFacts
from ..names import natural_key, ranges
from .converse import Ask, converse
from .joined import Lists, joined, lists_of
from .rows import Row, Rows, fact_rows, kind_and_name, runtime_rows, text_of
from .store import RankPlace

BUCKETS = 16
CLASSES = 16
"""Ranks that differ from the others each in its own way: so many are asked for details."""

LISTED = 200
"""Differences that are kept; the others are counted."""

_ABSENT_ELSEWHERE = frozenset({"held"})
"""Kinds of rows that only some ranks need to have: where two have one, it must be the same."""


@frozen(kw_only=True)
class RankSummary:
    """
    What a rank says first: a digest for each bucket of names, and the ranks that it works with, as ranges.

    `asked` is a digest of what it was asked to do, `runtime` those of its traced steps, empty without a trace. `lists`
    are digests of what is joined over the job. A rank that is not `built` has no model: there is nothing to compare
    with it. `sample` stands for some values of its model, empty when there are none.
    """

    digests: tuple[str, ...]
    peers: str
    asked: str = ""
    runtime: tuple[str, ...] = ()
    lists: dict[str, str] = field(factory=dict)
    built: bool = True
    sample: str = ""


@frozen
class _Table:
    """One of the tables that are compared: which digests, this rank's own rows."""

    name: str
    own: Rows

    def digests(self, said: RankSummary) -> tuple[str, ...]:
        """What a rank said about this table."""
        if self.name == "asked":
            return (said.asked,)
        return said.runtime if self.name == "runtime" else said.digests

    def rows(self, buckets: Iterable[int]) -> Rows:
        """The rows behind some digests; what was asked has one digest."""
        if self.name == "asked":
            return self.own
        wanted = set(buckets)
        return {name: row for name, row in self.own.items() if bucket_of(name) in wanted}


@frozen
class _Question:
    """A question for the rows of a table in some buckets, or for a list."""

    table: str
    buckets: tuple[int, ...] = ()


def compare_ranks(place: RankPlace, facts: Facts, timeout: float, asked: Mapping[str, str] = EMPTY) -> RanksFacts:
    """
    Return what the ranks do not agree about, the same on every rank. Every rank must call it.

    `asked` says what this rank was asked to do, as texts by name.

    Raises `JobError` when a rank failed, died or did not come within `timeout` seconds.
    """
    versions = {f"version {name}": text_of(version) for name, version in facts.environment.versions.items()}
    tables = {
        "facts": _Table("facts", fact_rows(facts)),
        "runtime": _Table("runtime", runtime_rows(facts)),
        "asked": _Table("asked", {f"asked {name}": {"value": text} for name, text in {**versions, **asked}.items()}),
    }
    lists = lists_of(facts)
    summary = evolve(
        summary_of(facts.sharding, tables["facts"].own, place.rank),
        asked=hashlib.blake2b("".join(_digests(tables["asked"].own)).encode(), digest_size=8).hexdigest(),
        lists=lists.digests(),
        sample=(facts.model.sample or "") if facts.model is not None else "",
    )
    if facts.runtime is not None:
        summary = evolve(summary, runtime=_digests(tables["runtime"].own))
    message = msgspec.json.encode(summary).decode()

    def answer(question: str) -> str:
        wanted = msgspec.json.decode(question, type=_Question)
        if wanted.table not in tables:
            return msgspec.json.encode(lists.names(wanted.table)).decode()
        return msgspec.json.encode(tables[wanted.table].rows(wanted.buckets)).decode()

    def lead(messages: list[str], ask: Ask) -> str:
        said = [msgspec.json.decode(text, type=RankSummary) for text in messages]
        result = _with_lists(_compared(said, tables, ask), said, lists, ask)
        return msgspec.json.encode(result).decode()

    return msgspec.json.decode(converse(place, message, lead=lead, answer=answer, timeout=timeout), type=RanksFacts)


def _with_lists(facts: RanksFacts, said: Sequence[RankSummary], own: Lists, ask: Ask) -> RanksFacts:
    """The facts with what is joined over the job: lists are asked for where they differ."""

    def names(kind: str, ranks: Iterable[int]) -> dict[int, tuple[str, ...]]:
        others = [rank for rank in ranks if rank != 0]
        question = msgspec.json.encode(_Question(kind)).decode()
        answers = ask(others, question) if others else {}
        asked = {rank: msgspec.json.decode(text, type=tuple[str, ...]) for rank, text in answers.items()}
        return {rank: own.names(kind) if rank == 0 else asked[rank] for rank in ranks}

    digests = [summary.lists for summary in said]
    return evolve(
        facts,
        unwanted=joined(digests, "unwanted", facts.compared, names),
        unheld=joined(digests, "unheld", facts.compared, names),
    )


def summary_of(sharding: ShardingFacts | None, rows: Rows, rank: int) -> RankSummary:
    """The first message of a rank."""
    peers = {rank}
    if sharding is not None:
        peers.update(number for mesh in sharding.meshes for number in mesh.ranks)
        peers.update(number for reduction in sharding.reductions for number in reduction.ranks or ())
    return RankSummary(digests=_digests(rows), peers=ranges(peers), built=sharding is not None)


def _digests(rows: Rows) -> tuple[str, ...]:
    """A digest for each bucket of names."""
    hashes = [hashlib.blake2b(digest_size=8) for _ in range(BUCKETS)]
    for name in sorted(rows):
        text = "\x1f".join((name, *(part for pair in sorted(rows[name].items()) for part in pair), ""))
        hashes[bucket_of(name)].update(text.encode("utf-8", "backslashreplace"))
    return tuple(digest.hexdigest() for digest in hashes)


def bucket_of(name: str) -> int:
    """The bucket of a name: the same on every rank."""
    return zlib.crc32(name.encode("utf-8", "backslashreplace")) % BUCKETS


def _compared(said: Sequence[RankSummary], tables: Mapping[str, _Table], ask: Ask) -> RanksFacts:
    groups = groups_of([numbers_of(item.peers) for item in said])
    groups = [built for group in groups if (built := [rank for rank in group if said[rank].built])]
    traced = [rank for rank, item in enumerate(said) if item.runtime]
    differences: list[RankDifference] = []
    runtime: list[RankDifference] = []
    for group in groups:
        differences.extend(_differences(group, said, tables["facts"], ask))
        runtime.extend(_differences([rank for rank in group if rank in traced], said, tables["runtime"], ask))
    for found in (differences, runtime):
        found.sort(key=lambda item: (natural_key(item.fqn), item.kind, item.field, item.ranks))
    return RanksFacts(
        world_size=len(said),
        compared=tuple(tuple(group) for group in groups),
        differences=tuple(differences[:LISTED]),
        left_out=max(0, len(differences) - LISTED),
        runtime=tuple(runtime[:LISTED]),
        runtime_traced=tuple(traced),
        twins=_twins(groups, said),
        asked=tuple(_differences(list(range(len(said))), said, tables["asked"], ask)),
    )


def _twins(groups: Sequence[Sequence[int]], said: Sequence[RankSummary]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The groups of several ranks that are equal in everything, first values included, each with its twins."""
    alike: dict[tuple[object, ...], list[tuple[int, ...]]] = defaultdict(list)
    for group in groups:
        samples = sorted(said[rank].sample for rank in group)
        if len(group) > 1 and all(samples):
            alike[said[group[0]].digests, *samples].append(tuple(group))
    return tuple(tuple(twins) for twins in alike.values() if len(twins) > 1)


def groups_of(peers: Sequence[Iterable[int]]) -> list[list[int]]:
    """The ranks that are connected by sharing a mesh or a reduction, directly or through others."""
    parent = list(range(len(peers)))

    def root(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for rank, others in enumerate(peers):
        for other in others:
            if 0 <= other < len(peers):
                parent[max(root(rank), root(other))] = min(root(rank), root(other))
    found: dict[int, list[int]] = defaultdict(list)
    for rank in range(len(peers)):
        found[root(rank)].append(rank)
    return [found[key] for key in sorted(found)]


def numbers_of(text: str) -> Iterator[int]:
    """The numbers of `ranges`: `0..3,7`."""
    for part in text.split(","):
        low, _, high = part.partition("..")
        yield from range(int(low), int(high or low) + 1)


def _differences(group: list[int], said: Sequence[RankSummary], table: _Table, ask: Ask) -> Iterator[RankDifference]:
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank in group:
        alike.setdefault(table.digests(said[rank]), []).append(rank)
    # Most ranks are right more often than the first one is; of equally many those with the lowest rank are taken.
    classes = sorted(alike.items(), key=lambda item: (-len(item[1]), item[1][0]))
    if len(classes) < 2:
        return
    reference, ranks_of_reference = classes[0]
    for digests, ranks in classes[1 + CLASSES :]:
        yield RankDifference(
            fqn="<model>",
            kind="model",
            field="digest",
            ranks=tuple(ranks),
            value="-".join(digests),
            reference_rank=ranks_of_reference[0],
            reference="-".join(reference),
        )
    for digests, ranks in classes[1 : 1 + CLASSES]:
        buckets = [index for index, digest in enumerate(digests) if digest != reference[index]]
        rows = _ask_rows((ranks_of_reference[0], ranks[0]), buckets, table, ask)
        reference_rows, other_rows = rows[ranks_of_reference[0]], rows[ranks[0]]
        between = list(_between(reference_rows, other_rows, table, ranks_of_reference[0], tuple(ranks)))
        yield from _without_shifts(between)


def _without_shifts(differences: list[RankDifference]) -> list[RankDifference]:
    """Leave other places out where a parameter is in another unit or missing: it moves all that come after it."""
    moved = any(item.kind == "parameter" and item.field != "place_in_unit" for item in differences)
    return [item for item in differences if item.field != "place_in_unit"] if moved else differences


def _ask_rows(ranks: Iterable[int], buckets: list[int], table: _Table, ask: Ask) -> dict[int, Rows]:
    others = [rank for rank in ranks if rank != 0]
    question = msgspec.json.encode(_Question(table.name, tuple(buckets))).decode()
    answers = {rank: msgspec.json.decode(text, type=Rows) for rank, text in ask(others, question).items()}
    return answers | ({0: table.rows(buckets)} if 0 in ranks else {})


def _between(
    reference: Rows, other: Rows, table: _Table, rank: int, ranks: tuple[int, ...]
) -> Iterator[RankDifference]:
    for key in {**reference, **other}:
        kind, name = ("runtime", key) if table.name == "runtime" else kind_and_name(key)
        for what, wanted, value in _fields_between(kind, reference.get(key), other.get(key)):
            yield RankDifference(
                fqn=name, kind=kind, field=what, ranks=ranks, value=value, reference_rank=rank, reference=wanted
            )


def _fields_between(kind: str, left: Row | None, right: Row | None) -> Iterator[tuple[str, str, str]]:
    """Field, text of the reference and text of the other, of each field that differs."""
    if left is None or right is None:
        if kind not in _ABSENT_ELSEWHERE:
            yield ("present", "absent", "present") if left is None else ("present", "present", "absent")
        return
    for what in {**left, **right}:
        wanted, value = left.get(what, "absent"), right.get(what, "absent")
        if wanted != value:
            yield what, wanted, value
