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
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType

import msgspec
from attrs import define, field

from .store import JobError, RankPlace, expect_no_more, joined_place

BEAT_SECONDS = 2.0
WAIT_SECONDS = 0.1
ENDING_SECONDS = 10.0
# A rank that beats without a step forward for so many time limits hangs: one long step is no failure.
STANDSTILL = 5

_CALLS = itertools.count(1)
_read_by_all: list[tuple[RankPlace, str]] = []


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


class _Attention:
    """The patience for ranks that owe something: for as long as they beat and get on, and none has failed."""

    def __init__(self, exchange: Exchange, ranks: Iterable[int]) -> None:
        self._exchange = exchange
        started = time.monotonic()
        self._watches = {rank: _Watch(started) for rank in ranks}
        self._checked = 0.0

    def until(self, rank: int) -> float:
        return time.monotonic() + WAIT_SECONDS

    def given_up(self, rank: int, owed: Mapping[int, str]) -> None:
        self._exchange.raise_told()
        if time.monotonic() - self._checked > min(BEAT_SECONDS, self._exchange.limit / 4):
            self._exchange.look_after({rank: self._watches[rank] for rank in self._exchange.absent(owed)})
            self._checked = time.monotonic()


class Exchange:
    """
    One conversation of all ranks. A context manager; without a job it talks to itself.

    `limit` is how many seconds a rank may be silent; once `stop` says that the run is to end, it is at most
    `ENDING_SECONDS`, for what ends a job waits no longer.
    """

    def __init__(self, *, limit: float = 60.0, name: str = "weights", stop: Callable[[], bool] | None = None) -> None:
        try:
            place = joined_place()
        except JobError as error:
            raise RankError(next(iter(error.causes)), str(error)) from error
        self.rank = 0 if place is None else place.rank
        self.world_size = 1 if place is None else place.world_size
        self._place = None
        if place is not None:
            self._place = RankPlace(place.store, place.rank, place.world_size, line=place.line)
            self._place.answer_seconds = max(1.0, limit)
        self._prefix = f"shardlint/{name}/{next(_CALLS)}"
        self._longest = limit
        self._stop = stop
        self._rounds = itertools.count()
        self._steps = itertools.count(1)
        self._step = 0
        self._done = threading.Event()

    def __enter__(self) -> Exchange:
        if self._place is not None:
            with self._naming_ranks():
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
            self._place.put(self._key("failed"), msgspec.json.encode((rank, text[:2000])))

    @property
    def sent(self) -> int:
        """How many bytes this rank sent, beats aside."""
        return 0 if self._place is None else self._place.sent

    @property
    def limit(self) -> float:
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
        place.put(self._key(f"beat/{self.rank}"), f"{count} {self._step}".encode(), counted=False)

    def gather(self, blob: bytes) -> list[bytes]:
        """Send `blob` to rank 0. Returns all ranks' blobs there, an empty list elsewhere. Raises `RankError`."""
        turn = self._next_turn()
        if self.rank:
            self._put(f"{turn}/{self.rank}", blob)
            return []
        others = self._take({rank: f"{turn}/{rank}" for rank in range(1, self.world_size)})
        while _read_by_all:  # everybody has come to this call, so nobody reads those of an earlier one
            place, key = _read_by_all.pop()
            place.forget(key)
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
        self._put(f"{turn}/all", blob)
        if self._place is not None:
            _read_by_all.append((self._place, self._key(f"{turn}/all")))
        return blob

    def _next_turn(self) -> int:
        self.step()
        self.raise_told()
        return next(self._rounds)

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _put(self, key: str, blob: bytes) -> None:
        if self._place is not None:
            with self._naming_ranks():
                self._place.put(self._key(key), blob)

    def _take(self, wanted: dict[int, str], *, keep: bool = False) -> dict[int, bytes]:
        """Wait for a blob of each rank, by rank; those that nobody else reads are freed unless `keep`."""
        if self._place is None:
            return {}
        keys = {rank: self._key(key) for rank, key in wanted.items()}
        with self._naming_ranks():
            heard, _ = self._place.hear(keys, _Attention(self, keys))
        for key in () if keep else keys.values():
            self._place.forget(key)
        return {rank: heard[rank] for rank in wanted}

    def _came(self, key: str) -> bool:
        """Whether a key is there."""
        with self._naming_ranks():
            return self._place is not None and self._place.has(key)

    @contextlib.contextmanager
    def _naming_ranks(self) -> Iterator[None]:
        """Raise `RankError` for a store that is gone."""
        try:
            yield
        except JobError as error:
            rank, text = next(iter(error.causes.items()))
            raise RankError(rank, text, self.world_size) from error

    def absent(self, owed: Mapping[int, str]) -> list[int]:
        """The ranks whose keys have not come yet."""
        return [rank for rank, key in owed.items() if not self._came(key)]

    def look_after(self, watches: Mapping[int, _Watch]) -> None:
        """Raise for the first rank that has been silent, or has stood still, for too long."""
        for rank, watch in watches.items():
            now = time.monotonic()
            if watch.hear(self._latest_beat(rank), now):
                self.step()  # to wait for a rank that gets on is to get on
            if now - watch.heard > self.limit:
                text = f"rank {rank} has not been heard of for {self.limit:g} seconds"
                raise RankError(rank, text, self.world_size)
            if now - watch.moved > STANDSTILL * self.limit:
                text = f"rank {rank} is alive, but has not got on for {STANDSTILL * self.limit:g} seconds"
                raise RankError(rank, text, self.world_size)

    def _latest_beat(self, rank: int) -> str:
        key = self._key(f"beat/{rank}")
        with self._naming_ranks():
            return self._place.take(key).decode() if self._place is not None and self._came(key) else ""

    def raise_told(self) -> None:
        """Raise `RankError` for a failure that another rank has told."""
        key = self._key("failed")
        if self._place is not None and self._came(key):
            with self._naming_ranks():
                rank, text = msgspec.json.decode(self._place.take(key), type=tuple[int, str])
            raise RankError(rank, text, self.world_size)
