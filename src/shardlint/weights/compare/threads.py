"""
Drive the comparison: pieces into units of work, units over threads, results added up in order.

Every unit is compared by one thread with its own buffer; the outcome does not depend on which thread took which unit.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from attrs import define, field, frozen

from ..storage.reader import Reader
from ..storage.stored_tensors import Files, TensorSource
from .counts import Tally
from .pieces import Piece, check_tile
from .tiles import Tile

UNIT_BYTES = 32 << 20
# Differing tiles of one tensor in one unit that are diagnosed in full; the others are only counted.
DETAILED_TILES = 2

Progress = Callable[[int, int, str], None]
Counts = dict[tuple[str, str], Tally]


@frozen(kw_only=True)
class Options:
    """
    How to compare. `threads` None: as many as cores for each rank of the host, at most eight.

    `sample` is the fraction of the tiles to look at; `max_memory` bounds the buffers of all threads, in bytes. `stop`
    is asked between tiles whether to end early; `pulse` is called after every step forward.
    """

    threads: int | None = None
    sample: float = 1.0
    max_memory: int | None = None
    progress: Progress | None = None
    staged: bool = False
    stop: Callable[[], bool] | None = None
    pulse: Callable[[], None] | None = None

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to end early."""
        return self.stop is not None and self.stop()

    def beat(self) -> None:
        """Tell that a step forward was made."""
        if self.pulse is not None:
            self.pulse()


@define
class Compared:
    """What was found: counts by (live tensor, checkpoint tensor), and whether everything was looked at."""

    counts: Counts = field(factory=dict)
    elements: int = 0
    bytes: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    sampled: bool = False

    def add(self, counts: Counts) -> None:
        """Add the counts of one unit."""
        for key, tally in counts.items():
            self.counts.setdefault(key, Tally()).add(tally)


T = TypeVar("T")
R = TypeVar("R")
Unit = list[tuple[Piece, list[Tile]]]

# What one thread needs: its buffer, and the temporaries of casts and of the diagnosis of one tile.
BYTES_PER_THREAD = 32 << 20


def thread_count(options: Options) -> int:
    """How many threads to use, within the memory bound; at least one. The ranks of one host share its cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    wanted = options.threads or min(8, cores // max(1, int(ranks) if ranks.isdigit() else 1))
    allowed = options.max_memory // BYTES_PER_THREAD if options.max_memory else wanted
    return max(1, min(wanted, allowed))


def units(pieces: Iterable[Piece], sample: float = 1.0) -> Iterator[Unit]:
    """Group tiles into units of about `UNIT_BYTES`, in order. With `sample` below one, a fixed choice of the tiles."""
    unit: Unit = []
    held = 0
    for number, piece in enumerate(pieces):
        tiles: list[Tile] = []
        for index, tile in enumerate(piece.tiles()):
            if sample < 1.0 and not _chosen(piece, number, index, sample):
                continue
            tiles.append(tile)
            held += tile.volume * piece.live.item
            if held >= UNIT_BYTES:
                yield [*unit, (piece, tiles)]
                unit, tiles, held = [], [], 0
        if tiles:
            unit.append((piece, tiles))
            held += 4096  # a call costs as much as comparing a page
    if unit:
        yield unit


def _chosen(piece: Piece, number: int, index: int, sample: float) -> bool:
    return chosen(f"{piece.live.name}:{number}:{index}", sample)


def chosen(text: str, sample: float) -> bool:
    """A fixed choice of about that fraction of all texts."""
    return zlib.crc32(text.encode()) < sample * 0x1_0000_0000


def compare_unit(unit: Unit, reader: Reader, stop: threading.Event, options: Options) -> tuple[Counts, int]:
    """Compare one unit; returns the counts and the bytes of the live side looked at."""
    counts: Counts = {}
    done = 0
    for piece, tiles in unit:
        tally = counts.setdefault((piece.live.name, piece.key), Tally())
        options.beat()
        for tile in tiles:
            if stop.is_set() or options.stopped:
                return counts, done
            check_tile(piece, tile, reader, tally, detailed=tally.detailed_tiles < DETAILED_TILES)
            done += tile.volume * piece.live.item
    return counts, done


def compare(pieces: list[Piece], sources: Mapping[str, TensorSource], options: Options) -> Compared:
    """
    Compare all pieces with their sources.

    Ctrl-C ends early with what was found until then, marked interrupted. Raises `ReadError` on an unreadable file.
    """
    total = sum(piece.volume * piece.live.item for piece in pieces)
    stop = threading.Event()
    local = threading.local()

    with Files() as files:

        def work(unit: Unit) -> tuple[Counts, int]:
            if not hasattr(local, "reader"):
                local.reader = Reader(sources, files)
            return compare_unit(unit, local.reader, stop, options)

        return drive(work, units(pieces, options.sample), total, options, stop)


def drive(
    work: Callable[[T], tuple[Counts, int]], pending: Iterator[T], total: int, options: Options, stop: threading.Event
) -> Compared:
    """
    Run `work` on everything that is pending, over threads, and add up what it returns. `total` is the bytes to do.

    Ends early, marked interrupted, on Ctrl-C and when the options say so.
    """
    result = Compared(sampled=options.sample < 1.0)
    started = time.perf_counter()
    try:
        for counts, done in in_order(work, pending, thread_count(options), stop):
            result.add(counts)
            result.bytes += done
            options.beat()
            if options.stopped:
                stop.set()
                result.interrupted = True
                break
            if options.progress:
                options.progress(result.bytes, total, "weights")
    except KeyboardInterrupt:
        result.interrupted = True
    result.elements = sum(tally.checked for tally in result.counts.values())
    result.seconds = time.perf_counter() - started
    return result


def in_order(work: Callable[[T], R], pending: Iterator[T], threads: int, stop: threading.Event) -> Iterator[R]:
    """Run the units over threads, a few ahead, and yield their results in the order of the units."""
    if threads == 1:
        yield from map(work, pending)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="shardlint-weights") as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for unit in itertools.islice(pending, 2 * threads):
                waiting.append(pool.submit(work, unit))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(work, unit) for unit in itertools.islice(pending, 1))
        finally:
            stop.set()
            for future in waiting:
                future.cancel()
