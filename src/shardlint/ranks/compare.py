"""
What the ranks of a job tell each other about their models: digests first, details only where they differ.

Every rank says sixteen digests of its parameters and which ranks it shares a mesh or a reduction with. Rank 0 compares
ranks that share one; of those that differ it asks one for the rows behind the digests that differ.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from attrs import evolve, frozen

from ..facts import Facts, RankDifference, RanksFacts, is_known
from ..facts.sharding import EXPERT, OwnershipFacts, ShardingFacts, placement_texts
from ..names import natural_key, ranges
from .converse import Ask, converse
from .store import RankPlace

BUCKETS = 16
CLASSES = 16
"""Ranks that differ from the first one each in its own way: so many are asked for details."""

LISTED = 200
"""Differences that are kept; the others are counted."""

FIELDS = ("global_shape", "dtype", "owner", "domain", "mesh", "placements", "requires_grad", "place_in_unit")
RUNTIME_FIELDS = ("entered", "gradient")
Rows = dict[str, tuple[str, ...]]


@frozen(kw_only=True)
class RankSummary:
    """
    What a rank says first: a digest for each bucket of names, and the ranks that it works with, as ranges.

    `runtime` are the digests of its traced steps, empty without a trace. A rank that is not `built` has no model: there
    is nothing to compare with it.
    """

    digests: tuple[str, ...]
    peers: str
    runtime: tuple[str, ...] = ()
    built: bool = True


@frozen
class _Table:
    """One of the tables that are compared: which digests, the fields of its rows, this rank's own rows."""

    name: str
    fields: tuple[str, ...]
    own: Rows

    def digests(self, said: RankSummary) -> tuple[str, ...]:
        """What a rank said about this table."""
        return said.runtime if self.name == "runtime" else said.digests


@frozen
class _Question:
    """A question for the rows of a table in some buckets."""

    table: str
    buckets: tuple[int, ...]


def compare_ranks(place: RankPlace, facts: Facts, timeout: float) -> RanksFacts:
    """
    Return what the ranks do not agree about, the same on every rank. Every rank must call it.

    Raises `JobError` when a rank failed, died or did not come within `timeout` seconds.
    """
    tables = {
        "parameters": _Table("parameters", FIELDS, rows_of(facts.sharding)),
        "runtime": _Table("runtime", RUNTIME_FIELDS, runtime_rows(facts)),
    }
    summary = summary_of(facts.sharding, tables["parameters"].own, place.rank)
    if facts.runtime is not None:
        summary = evolve(summary, runtime=_digests(tables["runtime"].own))
    message = msgspec.json.encode(summary).decode()

    def answer(question: str) -> str:
        asked = msgspec.json.decode(question, type=_Question)
        return msgspec.json.encode(_rows_in(tables[asked.table].own, asked.buckets)).decode()

    def lead(messages: list[str], ask: Ask) -> str:
        said = [msgspec.json.decode(text, type=RankSummary) for text in messages]
        return msgspec.json.encode(_compared(said, tables, ask)).decode()

    return msgspec.json.decode(converse(place, message, lead=lead, answer=answer, timeout=timeout), type=RanksFacts)


def rows_of(sharding: ShardingFacts | None) -> Rows:
    """
    What must be equal on all ranks, as texts, by name; a second record of one name is told apart by a number.

    The place of a parameter among those of its unit is part of it: units pack their parameters one after another, so
    that ranks which pack them in another order exchange one parameter's elements for another's.
    """
    rows: Rows = {}
    places: Counter[int | None] = Counter()
    for record in sharding.parameters if sharding is not None else ():
        name, number = record.fqn, 2
        while name in rows:
            name, number = f"{record.fqn} ({number})", number + 1
        assert sharding is not None
        place = "" if record.unit is None else str(places[record.unit])
        places[record.unit] += 1
        rows[name] = _row(sharding, record, place)
    return rows


def _row(sharding: ShardingFacts, record: OwnershipFacts, place: str) -> tuple[str, ...]:
    layout = sharding.layout_of(record)
    mesh = sharding.mesh_text(layout.mesh if layout.mesh is not None else layout.source_mesh)
    placements = layout.placements or layout.source_placements
    return (
        str(list(layout.global_shape)),
        record.dtype,
        record.owner,
        record.domain if is_known(record.domain) else "unknown",
        mesh,
        ", ".join(placement_texts(placements)) or "none",
        str(record.requires_grad),
        place,
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
        hashes[bucket_of(name)].update("\x1f".join((name, *rows[name], "")).encode("utf-8", "backslashreplace"))
    return tuple(digest.hexdigest() for digest in hashes)


def runtime_rows(facts: Facts) -> Rows:
    """
    What a traced step must have in common on ranks that work together, by name: which units ran, which gradients came.

    Experts, and what may be some, are left out of the gradients: another rank's experts may be those that got the
    tokens. So are the original parameters of FSDP1, of which a rank may hold nothing.
    """
    runtime = facts.runtime
    if runtime is None:
        return {}
    forwarded = runtime.forwarded()
    rows: Rows = {f"unit {unit.name}": (_yes(unit.name in forwarded), "") for unit in runtime.units if unit.observed}
    if runtime.raised:
        return rows
    records = facts.sharding.parameters if facts.sharding else ()
    experts = {record.fqn for record in records if not is_known(record.domain) or record.domain == EXPERT}
    parts = {name for unit in runtime.units if unit.kind == "fsdp1" for name in unit.parameters}
    parts = {name for name in parts if not name.endswith("_flat_param")}
    for gradient in runtime.gradients:
        if gradient.fqn not in experts and gradient.fqn not in parts:
            rows[f"gradient {gradient.fqn}"] = ("", _yes(gradient.present > 0))
    return rows


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def bucket_of(name: str) -> int:
    """The bucket of a name: the same on every rank."""
    return zlib.crc32(name.encode("utf-8", "backslashreplace")) % BUCKETS


def _rows_in(rows: Rows, buckets: Iterable[int]) -> Rows:
    wanted = set(buckets)
    return {name: row for name, row in rows.items() if bucket_of(name) in wanted}


def _compared(said: Sequence[RankSummary], tables: Mapping[str, _Table], ask: Ask) -> RanksFacts:
    groups = groups_of([_numbers(item.peers) for item in said])
    groups = [built for group in groups if (built := [rank for rank in group if said[rank].built])]
    traced = [rank for rank, item in enumerate(said) if item.runtime]
    differences: list[RankDifference] = []
    runtime: list[RankDifference] = []
    for group in groups:
        differences.extend(_differences(group, said, tables["parameters"], ask))
        runtime.extend(_differences([rank for rank in group if rank in traced], said, tables["runtime"], ask))
    for found in (differences, runtime):
        found.sort(key=lambda item: (natural_key(item.fqn), item.field, item.ranks))
    return RanksFacts(
        world_size=len(said),
        compared=tuple(tuple(group) for group in groups),
        differences=tuple(differences[:LISTED]),
        left_out=max(0, len(differences) - LISTED),
        runtime=tuple(runtime[:LISTED]),
        runtime_traced=tuple(traced),
    )


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


def _numbers(text: str) -> Iterator[int]:
    """The numbers of `ranges`: `0..3,7`."""
    for part in text.split(","):
        low, _, high = part.partition("..")
        yield from range(int(low), int(high or low) + 1)


def _differences(group: list[int], said: Sequence[RankSummary], table: _Table, ask: Ask) -> Iterator[RankDifference]:
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank in group:
        alike.setdefault(table.digests(said[rank]), []).append(rank)
    classes = list(alike.items())
    if len(classes) < 2:
        return
    reference, ranks_of_reference = classes[0]
    for digests, ranks in classes[1 + CLASSES :]:
        yield RankDifference(
            fqn="<model>",
            field="digest",
            ranks=tuple(ranks),
            value="-".join(digests),
            reference_rank=ranks_of_reference[0],
            reference="-".join(reference),
        )
    for digests, ranks in classes[1 : 1 + CLASSES]:
        buckets = [index for index in range(BUCKETS) if digests[index] != reference[index]]
        asked = _ask_rows((ranks_of_reference[0], ranks[0]), buckets, table, ask)
        found = list(
            _between(asked[ranks_of_reference[0]], asked[ranks[0]], table, ranks_of_reference[0], tuple(ranks))
        )
        yield from _without_shifts(found)


def _without_shifts(found: list[RankDifference]) -> list[RankDifference]:
    """Leave other places out where something else differs: a parameter too many moves all that come after it."""
    if all(item.field == "place_in_unit" for item in found):
        return found
    return [item for item in found if item.field != "place_in_unit"]


def _ask_rows(ranks: Iterable[int], buckets: list[int], table: _Table, ask: Ask) -> dict[int, Rows]:
    others = [rank for rank in ranks if rank != 0]
    question = msgspec.json.encode(_Question(table.name, tuple(buckets))).decode()
    found = {rank: msgspec.json.decode(text, type=Rows) for rank, text in ask(others, question).items()}
    return found | ({0: _rows_in(table.own, buckets)} if 0 in ranks else {})


def _between(
    reference: Rows, other: Rows, table: _Table, rank: int, ranks: tuple[int, ...]
) -> Iterator[RankDifference]:
    for name in {**reference, **other}:
        left, right = reference.get(name), other.get(name)
        if left is None or right is None:
            present = ("present", "absent")
            value, wanted = present if left is None else present[::-1]
            yield RankDifference(
                fqn=name, field="present", ranks=ranks, value=value, reference_rank=rank, reference=wanted
            )
            continue
        for field, mine, theirs in zip(table.fields, left, right, strict=True):
            if mine != theirs:
                yield RankDifference(
                    fqn=name, field=field, ranks=ranks, value=theirs, reference_rank=rank, reference=mine
                )
