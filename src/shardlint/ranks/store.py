"""
The store that the ranks of a job have anyway: messages between ranks, and how long a rank is waited for.

The store is a small key-value server on the host: no collective runs, no process group is touched, and a rank that
died or came late is named instead of hanging everybody. `converse` and `exchange` are made of what is here.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from attrs import Factory, define, field

from ..names import ranges
from .deadline import StoreLine, StoreSilentError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25
"""
Seconds between two looks at the store. The store's own wait would hold its client, which watchdogs of the job use too,
and prints two warnings each time that it ends without the key.
"""
CHUNK_BYTES = 4 << 20
_WHOLE, _CHUNKED = b"=", b"#"
"""The first byte of a value: a message, or the number of the keys that hold its parts."""


class Store(Protocol):
    """The part of `torch.distributed.Store` that is used."""

    def set(self, key: str, value: str | bytes) -> None:
        """Put a value."""

    def get(self, key: str) -> bytes:
        """Return a value that is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at zero, and return its value."""

    def delete_key(self, key: str) -> bool:
        """Free a key; a store may not be able to."""


class JobError(Exception):
    """
    Some ranks failed, died, or did not come: nothing was judged.

    `causes` gives what is known of each; rank numbers are those of the whole job.
    """

    def __init__(self, causes: Mapping[int, str]) -> None:
        self.causes = dict(sorted(causes.items()))
        same: dict[str, list[int]] = {}
        for rank, cause in self.causes.items():
            same.setdefault(cause, []).append(rank)
        parts = (f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}: {cause}" for cause, ranks in same.items())
        super().__init__("the ranks of this job could not be compared; " + "; ".join(parts))


def store_gone(error: Exception) -> JobError:
    """The error for a store that does not answer, which raised `error`."""
    if isinstance(error, StoreSilentError):
        return JobError({0: f"the store of the job does not answer, so its host hangs: {error}"})
    cause = f"the store of the job is gone, so its host has died: {type(error).__name__}: {error}"
    return JobError({0: cause[:500]})


@define
class RankPlace:
    """
    This process in its job: the store, its rank, the number of ranks; and the bytes that it sent and received.

    `gone` are ranks of which nothing is expected in the next turn, and why: they are hardly waited for.
    `chunks` are the numbers of chunks of long messages that are to be freed, by key. `line` makes the calls to the
    store, each of which may take `answer_seconds`. All methods but `forget` raise `JobError` when the store is gone or
    silent.
    """

    store: Store
    rank: int
    world_size: int
    sent: int = 0
    received: int = 0
    turn: int = 0
    said: int = 0
    gone: dict[int, str] = field(factory=dict)
    chunks: dict[str, int] = field(factory=dict)
    line: StoreLine = field(default=Factory(lambda place: StoreLine(place.store), takes_self=True), eq=False)
    answer_seconds: float = 30.0

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return self.line.call(name, *arguments, seconds=self.answer_seconds)
        except Exception as error:
            raise store_gone(error) from error

    def put(self, key: str, message: bytes, *, counted: bool = True) -> None:
        """Publish a message, in chunks when it is long. The key appears last."""
        self.sent += len(message) if counted else 0
        if len(message) <= CHUNK_BYTES:
            self._call("set", key, _WHOLE + message)
            return
        starts = range(0, len(message), CHUNK_BYTES)
        for number, start in enumerate(starts):
            self._call("set", f"{key}/{number}", message[start : start + CHUNK_BYTES])
        self._call("set", key, _CHUNKED + str(len(starts)).encode())
        self.chunks[key] = len(starts)

    def take(self, key: str) -> bytes:
        """Read a message that is there."""
        value = bytes(self._call("get", key))
        if value[:1] == _WHOLE:
            message = value[1:]
        else:
            self.chunks[key] = int(value[1:])
            message = b"".join(bytes(self._call("get", f"{key}/{number}")) for number in range(self.chunks[key]))
        self.received += len(message)
        return message

    def forget(self, key: str) -> None:
        """Free a message that this rank put or took and that nobody reads any more; not every store can."""
        for each in (key, *(f"{key}/{number}" for number in range(self.chunks.pop(key, 0)))):
            with contextlib.suppress(Exception):
                self.line.call("delete_key", each, seconds=self.answer_seconds)

    def has(self, key: str) -> bool:
        """Whether a message is there."""
        return bool(self._call("check", [key]))

    def count(self, key: str, amount: int) -> int:
        """Add to a counter of the store and return its value."""
        return int(self._call("add", key, amount))

    def await_key(self, key: str, until: float) -> bool:
        """Wait for a message until a point of the monotonic clock; whether it came."""
        pause = _FIRST_PAUSE
        while not self.has(key):
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def hear(self, keys: Mapping[int, str], patience: Patience) -> tuple[dict[int, bytes], dict[int, str]]:
        """
        Wait for a message of each rank, whose keys are given.

        Returns the messages, and why the other ranks were given up, both by rank. Raises what `patience` raises.
        """
        owed, heard, causes = dict(keys), dict[int, bytes](), dict[int, str]()
        while owed:
            rank, key = next(iter(owed.items()))
            if self.await_key(key, patience.until(rank)):
                heard[rank] = self.take(key)
                del owed[rank]
                continue
            cause = patience.given_up(rank, owed)
            if cause is not None:
                causes[rank] = cause
                del owed[rank]
        return heard, causes


class Patience(Protocol):
    """How long ranks are waited for."""

    def until(self, rank: int) -> float:
        """The point of the monotonic clock until which `rank` is waited for before `given_up` is asked."""

    def given_up(self, rank: int, owed: Mapping[int, str]) -> str | None:
        """Why `rank` is no longer waited for, None to go on. `owed` are the keys that have not come, by rank."""


_places: dict[int, RankPlace] = {}


def place_in_job(timeout: float) -> RankPlace | None:
    """
    This process's place in its job; None when it is alone.

    Without a process group but under torchrun, the rendezvous of the environment is joined, which makes no group.
    Raises `JobError` when there is a job whose store cannot be had.
    """
    distributed = _running_group()
    return _place_of_environment(timeout) if distributed is None else _place_in_group(distributed)


def joined_place() -> RankPlace | None:
    """
    The place in the running process group, else in the job that `place_in_job` has joined; None when alone.

    Unlike `place_in_job` it never waits for a rendezvous. Raises `JobError` as that does.
    """
    distributed = _running_group()
    return _places.get(0) if distributed is None else _place_in_group(distributed)


def expect_no_more(rank: int, why: str) -> None:
    """Remember that a rank has died or hangs, so that the next turn does not wait for it as long again."""
    for place in _places.values():
        if rank != place.rank:
            place.gone[rank] = why


def _running_group() -> Any:
    distributed: Any = sys.modules.get("torch.distributed")
    running = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if running else None


def _place_in_group(distributed: Any) -> RankPlace | None:
    world = int(distributed.get_world_size())
    if world < 2 or distributed.get_backend() == "fake":
        return None
    return _known_place(_group_store(distributed), int(distributed.get_rank()), world)


def _group_store(distributed: Any) -> Store:
    module: Any = distributed.distributed_c10d
    with contextlib.suppress(Exception):
        store: Store = module._get_default_store()
        return store
    with contextlib.suppress(Exception):
        found: Store = module._world.pg_map[module._get_default_group()][1]
        return found
    raise JobError({int(distributed.get_rank()): "this torch does not give access to the store of its process group"})


def _place_of_environment(timeout: float) -> RankPlace | None:
    wanted = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if any(name not in os.environ for name in wanted) or os.environ["WORLD_SIZE"] in ("", "0", "1"):
        return None
    if 0 in _places:
        return _places[0]
    import torch.distributed

    distributed: Any = torch.distributed
    rank = int(os.environ["RANK"])
    try:
        limit = datetime.timedelta(seconds=max(1.0, timeout))
        store, rank, world = next(distributed.rendezvous("env://", timeout=limit))
    except Exception as error:
        raise JobError({rank: f"no rendezvous under torchrun: {type(error).__name__}: {error}"}) from error
    prefixed: Any = distributed.PrefixStore("shardlint", store)
    _places[0] = RankPlace(prefixed, int(rank), int(world))
    return _places[0]


def _known_place(store: Store, rank: int, world: int) -> RankPlace:
    """The place of this store: turns are counted for as long as the process lives."""
    known = _places.get(1)
    if known is None or known.rank != rank or known.world_size != world or not _same(known.store, store):
        known = _places[1] = RankPlace(store, rank, world)
    return known


def _same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and bool(left == right))
