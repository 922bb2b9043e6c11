"""
Compare a checkpoint with another one, without a model's storage: safetensors or DCP folders, in any sharding.

Where both use the same names they are compared name by name. Else both are taken to the live names of the model type
that `config.json` names, built on meta, through its conversions.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from attrs import evolve, field, frozen

from ..analysis.wrapper_names import SAVED_PREFIXES
from ..checkpoint.folder import collect_checkpoint
from ..collect.model import model_facts
from ..facts import CheckpointFacts
from ..introspect.walk import walk
from ..loading.loader import PlanUnknownError
from ..loading.meta_model import build_meta_model
from ..ranks.exchange import Exchange, RankError
from .compare.counts import Tally
from .compare.live_tensor import LiveBytes
from .compare.pieces import check_tile
from .compare.threads import DETAILED_TILES, Compared, Counts, Options, chosen, drive
from .coverage import SourceCoverage, live_volume
from .forward import forward
from .merge import checkpoint_row, count_row, tallies, why_incomplete
from .rank_part import CountPart, RankPart, pieces_of
from .report_files import begun, failed_result, reported
from .result import Result, Row, RowKind, RowStatus, sorted_rows
from .storage import dcp
from .storage.reader import Reader
from .storage.stored_tensors import Files, TensorSource, sources_of
from .symbolic.tensor import SymbolicTensor

SLAB_BYTES = 4 << 20
PREFIXES_TRIED = ("", *SAVED_PREFIXES)


@frozen(kw_only=True)
class Side:
    """One checkpoint: its tensors by the names that both sides share, what they read, and what is left out and why."""

    path: Path
    regions: Mapping[str, SymbolicTensor]
    sources: Mapping[str, TensorSource]
    refused: Mapping[str, str] = field(factory=dict)
    excused: Mapping[str, str] = field(factory=dict)


@frozen
class Slab:
    """A box of one tensor."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def compare_checkpoints(
    path: Path, reference: Path, options: Options, rank_timeout: float = 60.0, reports: Path | None = None
) -> Result:
    """Compare every tensor of `path` with `reference`; under a job the work is divided over the ranks."""
    try:
        with Exchange(limit=rank_timeout, name="checkpoints", stop=options.stop) as exchange:
            begun(reports, exchange, str(reference))
            return reported(_run(path, reference, evolve(options, pulse=exchange.step), exchange), reports, exchange)
    except RankError as error:
        return failed_result(error, str(reference), reports)


def _run(path: Path, reference: Path, options: Options, exchange: Exchange) -> Result:
    part = RankPart(rank=exchange.rank)
    sides: tuple[Side, Side] | None = None
    try:
        sides = both_sides(path, reference)
        found = _compare(*sides, options, exchange)
        part.counts = [CountPart(live=name, key=key, tally=tally) for (name, key), tally in found.counts.items()]
        part.bytes, part.seconds = found.bytes, found.seconds
        part.interrupted, part.sampled = found.interrupted, found.sampled
    except PlanUnknownError as error:
        part.error, part.unplanned = str(error), True
    except KeyboardInterrupt:
        part.interrupted = True
    except Exception as error:  # told as a rank error, whatever it is
        part.error = f"{type(error).__name__}: {error}"
    blobs = exchange.gather(msgspec.json.encode(part))
    answer = b""
    if blobs:
        parts = [msgspec.json.decode(blob, type=RankPart) for blob in blobs]
        answer = msgspec.json.encode(_result(sides, parts, reference))
    return msgspec.json.decode(exchange.broadcast(answer), type=Result)


def both_sides(path: Path, reference: Path) -> tuple[Side, Side]:
    """Both checkpoints under shared names. Raises `PlanUnknownError`, `CheckpointError` and `ReadError`."""
    one, two = _stored(path), _stored(reference)
    stripped = _without_prefix(one, two)
    if stripped is not None:
        return stripped
    facts = next((side.facts for side in (two, one) if side.facts is not None and side.facts.config), None)
    if facts is None:
        best = max(PREFIXES_TRIED, key=lambda prefix: len(_shared(one, two, prefix)))
        if _shared(one, two, best):  # names that only one of them has are told
            return _both_renamed(one, two, best)
        raise PlanUnknownError(
            f"{path} and {reference} use different names, and neither has a config.json that says how they are related"
        )
    built = build_meta_model(facts)
    if built.quantizer is not None:
        raise PlanUnknownError("checkpoints of quantised models with different names are not compared")
    return _converted(one, built.model), _converted(two, built.model)


@frozen(kw_only=True)
class _StoredSide:
    path: Path
    regions: dict[str, SymbolicTensor]
    sources: Mapping[str, TensorSource]
    refused: Mapping[str, str]
    others: tuple[str, ...] = ()
    facts: CheckpointFacts | None = None


def _stored(path: Path) -> _StoredSide:
    """A checkpoint under its own names."""
    if dcp.is_folder(path):
        folder = dcp.read_folder(path)
        return _StoredSide(
            path=path,
            regions=_leaves(folder.tensors),
            sources=folder.tensors,
            refused=folder.refused,
            others=folder.others,
        )
    facts = collect_checkpoint(path)
    found = sources_of(facts, opaque=True)
    return _StoredSide(
        path=path, regions=_leaves(found.tensors), sources=found.tensors, refused=found.refused, facts=facts
    )


def _leaves(tensors: Mapping[str, TensorSource]) -> dict[str, SymbolicTensor]:
    return {key: SymbolicTensor.leaf(key, item.shape, item.dtype) for key, item in tensors.items()}


def _without_prefix(one: _StoredSide, two: _StoredSide) -> tuple[Side, Side] | None:
    """Both sides name by name when, but for one prefix of DCP names, they use the same ones."""
    for prefix in PREFIXES_TRIED:
        sides = _both_renamed(one, two, prefix)
        names = [set(side.regions) | set(side.refused) for side in sides]
        if names[0] == names[1] and names[0]:
            return sides
    return None


def _both_renamed(one: _StoredSide, two: _StoredSide, prefix: str) -> tuple[Side, Side]:
    """Both sides with a prefix taken off the names of DCP folders."""
    first, second = (_renamed(side, prefix if side.facts is None else "") for side in (one, two))
    return first, second


def _shared(one: _StoredSide, two: _StoredSide, prefix: str) -> set[str]:
    first, second = _both_renamed(one, two, prefix)
    return set(first.regions) & set(second.regions)


def _renamed(side: _StoredSide, prefix: str) -> Side:
    """The side with a prefix taken off; tensors without it are no part of the model."""
    regions = {name[len(prefix) :]: value for name, value in side.regions.items() if name.startswith(prefix)}
    refused = {name[len(prefix) :]: text for name, text in side.refused.items() if name.startswith(prefix)}
    outside = {name: f"not below {prefix}" for name in side.regions if not name.startswith(prefix)}
    outside |= dict.fromkeys(side.others, "no tensor")
    return Side(path=side.path, regions=regions, sources=side.sources, refused=refused, excused=outside)


def _converted(side: _StoredSide, model: Any) -> Side:
    """The side under the live names of the model, through the conversions of its type."""
    facts = model_facts(walk(model))
    live = {name for tensor in facts.tensors if tensor.in_state_dict for name in tensor.aliases}
    if side.facts is None:
        best = max(PREFIXES_TRIED, key=lambda prefix: len(live & set(_renamed(side, prefix).regions)))
        return _renamed(side, best)
    plan = forward(model, facts, side.facts, cast=False)
    excused = {leftover.key: leftover.reason for leftover in plan.plan.leftovers if leftover.reason != "unexpected"}
    refused = dict(plan.refused) | {name: group.reason for name, group in plan.groups.items()}
    return Side(path=side.path, regions=plan.regions, sources=plan.sources.tensors, refused=refused, excused=excused)


def slabs(name: str, shape: Sequence[int], item: int, limit: int = SLAB_BYTES) -> Iterator[Slab]:
    """Cut a tensor into boxes of at most `limit` bytes, in row-major order."""
    sizes = list(shape)
    depth = 0
    while depth < len(sizes) and math.prod(sizes[depth + 1 :]) * item > limit:
        depth += 1
    if depth == len(sizes):
        yield Slab(name, (0,) * len(sizes), tuple(sizes))
        return
    step = max(1, limit // max(1, math.prod(sizes[depth + 1 :]) * item))
    for number in range(math.prod(sizes[:depth])):
        outer: list[int] = []
        for size in reversed(sizes[:depth]):
            number, digit = divmod(number, size)  # noqa: PLW2901 - the number is taken apart
            outer.insert(0, digit)
        for at in range(0, sizes[depth], step):
            inner = tuple(sizes[depth + 1 :])
            count = min(step, sizes[depth] - at)
            yield Slab(name, (*outer, at, *(0,) * len(inner)), (*(1,) * depth, count, *inner))


def _compare(one: Side, two: Side, options: Options, exchange: Exchange) -> Compared:
    shared = [name for name in one.regions if name in two.regions and _comparable(one, two, name)]
    shared = [name for name in shared if live_volume(one.regions[name].blocks) == one.regions[name].numel()]
    stop = threading.Event()
    local = threading.local()
    regions = {name: one.regions[name] for name in shared}
    pending = (slab for name, item in regions.items() for slab in slabs(name, tuple(item.shape), item.itemsize))
    mine = (slab for number, slab in enumerate(pending) if number % exchange.world_size == exchange.rank)
    if options.sample < 1.0:
        mine = (slab for slab in mine if chosen(f"{slab.name}:{slab.offsets}", options.sample))
    total = sum(one.regions[name].numel() * one.regions[name].itemsize for name in shared) // exchange.world_size
    with Files() as files:

        def work(slab: Slab) -> tuple[Counts, int]:
            if stop.is_set() or options.stopped:
                return {}, 0
            options.beat()
            if not hasattr(local, "readers"):
                local.readers = Reader(one.sources, files, 1), Reader(two.sources, files)
            return _compare_slab(one, two, slab, *local.readers)

        return drive(work, mine, total, options, stop)


def _comparable(one: Side, two: Side, name: str) -> bool:
    return tuple(one.regions[name].shape) == tuple(two.regions[name].shape) and _formats(one, name) == _formats(
        two, name
    )


def _formats(side: Side, name: str) -> set[str]:
    """The dtypes of a tensor that torch does not have."""
    return {side.sources[key].opaque for key in side.regions[name].sources()}


def _compare_slab(one: Side, two: Side, slab: Slab, reader: Reader, other: Reader) -> tuple[Counts, int]:
    """Evaluate one side's box, and compare it with the other side as if it were live."""
    values = reader.box(one.regions[slab.name], slab.offsets, slab.sizes)
    live = LiveBytes(slab.name, values, origin=slab.offsets)
    region = two.regions[slab.name]
    part = SymbolicTensor(region.restricted(slab.offsets, slab.sizes), slab.sizes, region.dtype)
    counts: Counts = {}
    for piece in pieces_of(live, part, two.sources):
        tally = counts.setdefault((slab.name, piece.key), Tally())
        for tile in piece.tiles():
            check_tile(piece, tile, other, tally, detailed=tally.detailed_tiles < DETAILED_TILES)
    return counts, values.numel() * values.element_size()


def _result(sides: tuple[Side, Side] | None, parts: Sequence[RankPart], reference: Path) -> Result:
    errors = tuple((part.rank, part.error) for part in parts if part.error and not part.unplanned)
    incomplete = why_incomplete(parts)
    if parts[0].unplanned:
        incomplete = f"no load plan can be made: {parts[0].error}"
    rows = [] if sides is None else [*_live_rows(*sides, parts), *_reference_rows(*sides, parts)]
    return Result(
        rows=sorted_rows(rows),
        errors=errors,
        incomplete=incomplete,
        checkpoint=str(reference),
        world_size=len(parts),
        compared_bytes=sum(part.bytes for part in parts),
        seconds=max(part.seconds for part in parts),
    )


def _live_rows(one: Side, two: Side, parts: Sequence[RankPart]) -> Iterator[Row]:
    """A row for every tensor of the checkpoint that is looked at."""
    found = tallies(two.sources, parts, "live")
    partial = bool(why_incomplete(parts))
    for name, region in one.regions.items():
        tally, expected = found.get(name, Tally()), region.numel()
        covered = min(live_volume(side.regions[name].blocks) if name in side.regions else 0 for side in (one, two))
        row = count_row(RowKind.LIVE, name, tally, covered == expected and (partial or tally.checked == expected))
        reason = "" if row.status is not RowStatus.INCOMPLETE else _why_not(one, two, name, tally, expected)
        yield evolve(
            row,
            shape=tuple(region.shape),
            dtype=str(region.dtype).removeprefix("torch."),
            expected=expected,
            sources=tuple(sorted(two.regions[name].sources())) if name in two.regions else (),
            reason=reason,
        )
    for name, text in one.refused.items():
        yield Row(kind=RowKind.LIVE, name=name, status=RowStatus.INCOMPLETE, reason=text)
    yield from _unread(one)


def _unread(one: Side) -> Iterator[Row]:
    """Stored tensors of the checkpoint that is looked at which reach no shared name."""
    coverage = _coverage(one)
    for key, source in one.sources.items():
        read = coverage.volume(key)
        reason = one.excused.get(key, "")
        if read == source.volume:
            continue
        yield Row(
            kind=RowKind.LIVE,
            name=key,
            status=RowStatus.EXCLUDED if reason else RowStatus.INCOMPLETE,
            reason=reason or f"{read} of {source.volume} stored elements reach a name that both checkpoints have",
            checked=read or 0,
            expected=source.volume,
        )


def _why_not(one: Side, two: Side, name: str, tally: Tally, expected: int) -> str:
    if name in two.refused:
        return f"in {two.path}: {two.refused[name]}"
    if name not in two.regions:
        return f"{two.path} has no tensor of this name"
    if _formats(one, name) != _formats(two, name):
        return f"{two.path} has another dtype: {', '.join(sorted(_formats(two, name))) or 'one that torch has'}"
    if not _comparable(one, two, name):
        return f"{two.path} has the shape {list(two.regions[name].shape)}"
    return f"{tally.checked} of {expected} elements were compared"


def _why_unread(one: Side, two: Side, key: str, read: int, volume: int) -> str:
    names = sorted(name for name, region in two.regions.items() if key in region.sources())
    if read:
        return f"{read} of {volume} elements have a counterpart in {one.path}"
    called = f"; it would be called {names[0]}" if names and names[0] != key else ""
    if names and names[0] in one.regions:
        return f"{one.path} has the shape {list(one.regions[names[0]].shape)}{called}"
    return f"{one.path} has no tensor for it{called}"


def _coverage(side: Side) -> SourceCoverage:
    coverage = SourceCoverage()
    for region in side.regions.values():
        coverage.add(region.blocks)
    coverage.join()
    return coverage


def _reference_rows(one: Side, two: Side, parts: Sequence[RankPart]) -> Iterator[Row]:
    """A row for every stored tensor of the reference: which of its elements some tensor was compared with."""
    coverage = SourceCoverage()
    for name, region in two.regions.items():
        if name in one.regions and _comparable(one, two, name):
            coverage.add(region.blocks)
    found = tallies(two.sources, parts, "key")
    for key, source in two.sources.items():
        read = coverage.volume(key)
        row = count_row(RowKind.CHECKPOINT, key, found.get(key, Tally()), read == source.volume)
        excuse = two.excused.get(key)
        row = checkpoint_row(row, source, read, None if excuse is None else (excuse, True))
        if row.status is RowStatus.INCOMPLETE and read is not None:
            row = evolve(row, reason=_why_unread(one, two, key, read, source.volume))
        yield evolve(row, checked=read or 0)
    for key, text in two.refused.items():
        if key not in one.regions:
            yield Row(kind=RowKind.CHECKPOINT, name=key, status=RowStatus.INCOMPLETE, reason=text)
