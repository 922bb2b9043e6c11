"""
Messages between ranks through the store of the job: JSON bytes, no collective, no device.

A rank that raises, dies, hangs or never calls does not block the others: every rank beats every two seconds while it
works, and says how many steps forward it has made. One that has not been heard of for the time limit, or that stands
still for several times as long, is named in a `RankError`, which the rank that noticed it tells all others.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from types import TracebackType

import msgspec
from attrs import define, field

from .store import JobError, RankPlace, expect_no_more, joined_place

BEAT_SECONDS = 2.0
WAIT_SECONDS = 0.1
CHUNK_BYTES = 4 << 20
ENDING_SECONDS = 10.0
# A rank that beats without a step forward for so many time limits hangs: one long step is no failure.
STANDSTILL = 5

_CALLS = itertools.count(1)
_read_by_all: list[str] = []


class RankError(RuntimeError):
    """A rank that did not answer within the time limit. `rank` says which, `world_size` of how many."""

    def __init__(self, rank: int, text: str, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size
        super().__init__(text)


@define
class _Watch:
    """What was last heard of a rank, and when."""

    started: float
    beat: str = ""
    step: str = ""
    heard: float = field(init=False)
    moved: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.heard = self.moved = self.started

    def hear(self, text: str, now: float) -> bool:
        """Take the latest beat; whether the rank has made a step forward since."""
        if text == self.beat:
            return False
        step = text.partition(" ")[2]
        moved = step != self.step
        self.beat, self.step, self.heard = text, step, now
        self.moved = now if moved else self.moved
        return moved


class Exchange:
    """
    One conversation of all ranks. A context manager; without a job it talks to itself.

    `limit` is how many seconds a rank may be silent; once `stop` says that the run is to end, it is at most
    `ENDING_SECONDS`, for what ends a job waits no longer. `sent` counts the bytes that this rank sent.
    """

    def __init__(self, *, limit: float = 60.0, name: str = "weights", stop: Callable[[], bool] | None = None) -> None:
        try:
            place = joined_place()
        except JobError as error:
            raise RankError(next(iter(error.causes)), str(error)) from error
        self.rank = 0 if place is None else place.rank
        self.world_size = 1 if place is None else place.world_size
        self._place = None if place is None else RankPlace(place.store, place.rank, place.world_size)
        self._prefix = f"shardlint/{name}/{next(_CALLS)}"
        self._longest = limit
        self._stop = stop
        self._rounds = itertools.count()
        self._steps = itertools.count(1)
        self._step = 0
        self._done = threading.Event()
        self.sent = 0

    def __enter__(self) -> Exchange:
        if self._place is not None:
            self._set_beat(self._place, 0)
            threading.Thread(target=self._beat, args=(self._place,), name="shardlint-beat", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if error is None or self._place is None:
            return
        rank = error.rank if isinstance(error, RankError) else self.rank
        expect_no_more(rank, str(error))
        text = str(error) if isinstance(error, RankError) else f"rank {rank}: {type(error).__name__}: {error}"
        with contextlib.suppress(Exception):  # the store may be what failed, and the error itself must get out
            self._place.put(f"{self._prefix}/failed", msgspec.json.encode((rank, text[:2000])))

    @property
    def _limit(self) -> float:
        ending = self._stop is not None and self._stop()
        return min(self._longest, ENDING_SECONDS) if ending else self._longest

    def step(self) -> None:
        """Tell the other ranks, with the next beat, that this one has got on. Cheap, from any thread."""
        self._step = next(self._steps)

    def _beat(self, place: RankPlace) -> None:
        for count in itertools.count(1):
            if self._done.wait(BEAT_SECONDS):
                return
            try:
                self._set_beat(place, count)
            except Exception:  # the job is going down; the waiting rank says so
                return

    def _set_beat(self, place: RankPlace, count: int) -> None:
        place.store.set(f"{self._prefix}/beat/{self.rank}", f"{count} {self._step}")

    def gather(self, blob: bytes) -> list[bytes]:
        """Send `blob` to rank 0. Returns all ranks' blobs there, an empty list elsewhere. Raises `RankError`."""
        turn = self._next_turn()
        if self.rank:
            self._put(f"{turn}/{self.rank}", blob)
            return []
        others = self._take({rank: f"{turn}/{rank}" for rank in range(1, self.world_size)})
        self._forget(_read_by_all)  # everybody has come to this call, so nobody reads those of an earlier one
        _read_by_all.clear()
        return [blob, *others.values()]

    def scatter(self, blobs: list[bytes]) -> bytes:
        """From rank 0 to each rank its own blob (`blobs` counts there only). Raises `RankError`."""
        turn = self._next_turn()
        if self.rank:
            return self._take({0: f"{turn}/{self.rank}"})[0]
        for rank in range(1, self.world_size):
            self._put(f"{turn}/{rank}", blobs[rank])
        return blobs[0]

    def broadcast(self, blob: bytes) -> bytes:
        """From rank 0 to all. Raises `RankError`."""
        turn = self._next_turn()
        if self.rank:
            return self._take({0: f"{turn}/all"}, keep=True)[0]
        _read_by_all.extend(self._put(f"{turn}/all", blob))
        return blob

    def _next_turn(self) -> int:
        self.step()
        self._raise_told()
        return next(self._rounds)

    def _put(self, key: str, blob: bytes) -> list[str]:
        """Publish a blob in chunks; returns the keys."""
        if self._place is None:
            return []
        keys = []
        for number, at in enumerate(range(0, len(blob), CHUNK_BYTES)):
            keys.append(f"{self._prefix}/{key}/{number}")
            self._place.store.set(keys[-1], blob[at : at + CHUNK_BYTES])
        self._place.store.set(f"{self._prefix}/{key}", str(len(keys)))
        self.sent += len(blob)
        return [*keys, f"{self._prefix}/{key}"]

    def _take(self, wanted: dict[int, str], *, keep: bool = False) -> dict[int, bytes]:
        """Wait for a blob of each rank, by rank; those that nobody else reads are freed unless `keep`."""
        place = self._place
        if place is None:
            return {}
        self._await({rank: f"{self._prefix}/{key}" for rank, key in wanted.items()})
        found = {}
        for rank, key in wanted.items():
            count = int(place.store.get(f"{self._prefix}/{key}"))
            keys = [f"{self._prefix}/{key}/{number}" for number in range(count)]
            found[rank] = b"".join(bytes(place.store.get(each)) for each in keys)
            self._forget([] if keep else [*keys, f"{self._prefix}/{key}"])
        return found

    def _forget(self, keys: list[str]) -> None:
        for key in keys:
            if self._place is not None:
                with contextlib.suppress(Exception):  # not every store can delete
                    self._place.store.delete_key(key)

    def _await(self, keys: dict[int, str]) -> None:
        """Wait until all keys are there, with an eye on every rank that owes one."""
        started = time.monotonic()
        watches = {rank: _Watch(started) for rank in keys}
        checked = 0.0
        owed = dict(keys)
        while owed:
            rank, key = next(iter(owed.items()))
            if self._came(key):
                del owed[rank]
                continue
            self._raise_told()
            if time.monotonic() - checked > min(BEAT_SECONDS, self._limit / 4):
                owed = {rank: key for rank, key in owed.items() if not self._came(key, wait=False)}
                self._look_after({rank: watches[rank] for rank in owed})
                checked = time.monotonic()

    def _came(self, key: str, *, wait: bool = True) -> bool:
        """Whether a key is there, if need be after a short wait."""
        assert self._place is not None
        try:
            return self._place.await_key(key, time.monotonic() + WAIT_SECONDS if wait else 0.0)
        except Exception as error:
            text = f"the store of the job is gone, so its host has died: {type(error).__name__}: {error}"
            raise RankError(0, text[:500], self.world_size) from error

    def _look_after(self, watches: dict[int, _Watch]) -> None:
        """Raise for the first rank that has been silent, or has stood still, for too long."""
        for rank, watch in watches.items():
            now = time.monotonic()
            if watch.hear(self._latest_beat(rank), now):
                self.step()  # to wait for a rank that gets on is to get on
            if now - watch.heard > self._limit:
                text = f"rank {rank} has not been heard of for {self._limit:g} seconds"
                raise RankError(rank, text, self.world_size)
            if now - watch.moved > STANDSTILL * self._limit:
                text = f"rank {rank} is alive, but has not got on for {STANDSTILL * self._limit:g} seconds"
                raise RankError(rank, text, self.world_size)

    def _latest_beat(self, rank: int) -> str:
        key = f"{self._prefix}/beat/{rank}"
        return self._place.take(key).decode() if self._place is not None and self._came(key, wait=False) else ""

    def _raise_told(self) -> None:
        """Raise what another rank has told about a failure."""
        key = f"{self._prefix}/failed"
        if self._place is not None and self._came(key, wait=False):
            rank, text = msgspec.json.decode(self._place.take(key), type=tuple[int, str])
            raise RankError(rank, text, self.world_size)
