"""
Compare a checkpoint with another one, without a model's storage: safetensors or DCP folders, in any sharding.

Where both use the same names they are compared name by name. Else both are taken to the live names of the model type
that `config.json` names, built on meta, through its conversions.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
from attrs import evolve

from ..loading.loader import PlanUnknownError
from ..ranks.exchange import Exchange, RankError
from .checkpoint_boxes import Slab, slabs
from .checkpoint_rows import live_rows, reference_rows
from .checkpoint_sides import Side, both_sides, comparable
from .compare.counts import Tally
from .compare.live_tensor import LiveBytes
from .compare.pieces import check_tile, pieces_of
from .compare.threads import DETAILED_TILES, Compared, Counts, Options, chosen, drive
from .coverage import live_volume
from .explain import explained
from .merge import scope_of, why_incomplete, with_looks
from .options import VerifyOptions
from .rank_part import CountPart, LookPart, RankPart
from .report_files import begun, failed_result, reported
from .result import ReferenceScope, Result, sorted_rows
from .storage.reader import Reader
from .storage.stored_tensors import Files
from .symbolic.tensor import SymbolicTensor


def compare_checkpoints(path: Path, reference: Path, options: VerifyOptions) -> Result:
    """Compare every tensor of `path` with `reference`; under a job the work is divided over the ranks."""
    try:
        with Exchange(limit=options.rank_timeout, name="checkpoints", stop=options.stop) as exchange:
            return begun(options, exchange, str(reference)) or _run(path, reference, options, exchange)
    except RankError as error:
        return failed_result(error, str(reference), options)


def _run(path: Path, reference: Path, options: VerifyOptions, exchange: Exchange) -> Result:
    part = RankPart(rank=exchange.rank)
    sides: tuple[Side, Side] | None = None
    try:
        sides = both_sides(path, reference, options.fusions)
        found = _compare(*sides, options.comparing(exchange.step), exchange)
        part.counts = [CountPart(live=name, key=key, tally=tally) for (name, key), tally in found.counts.items()]
        part.bytes, part.seconds = found.bytes, found.seconds
        part.interrupted, part.sampled = found.interrupted, found.sampled
        part.looks = [] if found.interrupted else _looks(*sides, found)
    except PlanUnknownError as error:
        part.error, part.unplanned = str(error), True
    except KeyboardInterrupt:
        part.interrupted = True
    except Exception as error:  # told as a rank error, whatever it is
        part.failed(error)
    blobs = exchange.gather(msgspec.json.encode(part))
    answer = b""
    if blobs:
        parts = [msgspec.json.decode(blob, type=RankPart) for blob in blobs]
        result = evolve(_result(sides, parts, reference), phase=options.phase)
        answer = msgspec.json.encode(reported(result, options.reports))
    return msgspec.json.decode(exchange.broadcast(answer), type=Result)


def _compare(one: Side, two: Side, options: Options, exchange: Exchange) -> Compared:
    shared = [name for name in one.regions if name in two.regions and comparable(one, two, name)]
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


def _looks(one: Side, two: Side, found: Compared) -> list[LookPart]:
    """What the tensors that differ look like."""
    wrong = {name for (name, _), tally in found.counts.items() if tally.load_mismatches}
    shapes = {name: tuple(region.shape) for name, region in two.regions.items()}
    with Files() as files:
        readers = Reader(one.sources, files, 1), Reader(two.sources, files, 1)
        looks = explained(
            wrong,
            shapes,
            lambda name, offsets, sizes: readers[0].box(one.regions[name], offsets, sizes),
            lambda name, offsets, sizes: readers[1].box(two.regions[name], offsets, sizes),
        )
        return [LookPart(name=name, text=it.text, median_abs=it.median_abs, bits=it.bits) for name, it in looks]


def _result(sides: tuple[Side, Side] | None, parts: Sequence[RankPart], reference: Path) -> Result:
    errors = tuple((part.rank, part.error) for part in parts if part.error and not part.unplanned)
    incomplete = why_incomplete(parts)
    if parts[0].unplanned:
        incomplete = f"no load plan can be made: {parts[0].error}"
    rows = [] if sides is None else [*with_looks(live_rows(*sides, parts), parts), *reference_rows(*sides, parts)]
    return Result(
        rows=sorted_rows(rows),
        renamed=sides[0].renamed if sides else (),
        errors=errors,
        crashed=tuple(part.rank for part in parts if part.crashed),
        incomplete=incomplete,
        checkpoint=str(reference),
        world_size=len(parts),
        scope=scope_of(sides[1].sources) if sides else ReferenceScope(),
        compared_bytes=sum(part.bytes for part in parts),
        seconds=max(part.seconds for part in parts),
    )
