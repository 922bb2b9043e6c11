"""
One question and answer between all ranks of a job, through the store that the job has anyway.

The store is a small key-value server on the host: no collective runs, no process group is touched, and a rank that
died or came late is named instead of hanging everybody. Rank 0 leads: it reads what every rank says first, may ask
some of them for more, and tells everybody the result. Messages are JSON texts.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec
from attrs import define, field, frozen

from ..names import ranges

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25
"""
Seconds between two looks at the store. The store's own wait would hold its client, which watchdogs of the job use too,
and prints two warnings each time that it ends without the key.
"""
_GONE_SECONDS = 3.0
"""How long a rank is waited for that has been given up before."""


class Store(Protocol):
    """The part of `torch.distributed.Store` that is used."""

    def set(self, key: str, value: str | bytes) -> None:
        """Put a value."""

    def get(self, key: str) -> bytes:
        """Return a value that is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""

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


@define
class RankPlace:
    """
    This process in its job: the store, its rank, the number of ranks; and the bytes that it sent and received.

    `gone` are ranks of which nothing is expected in the next turn, and why: they are hardly waited for.
    """

    store: Store
    rank: int
    world_size: int
    sent: int = 0
    received: int = 0
    turn: int = 0
    said: int = 0
    gone: dict[int, str] = field(factory=dict)

    def put(self, key: str, text: bytes) -> None:
        """Publish a JSON text."""
        self.sent += len(text)
        self.store.set(key, text.decode())

    def take(self, key: str) -> bytes:
        """Read a JSON text that is there."""
        text = bytes(self.store.get(key))
        self.received += len(text)
        return text

    def await_key(self, key: str, until: float) -> bool:
        """Wait for a key until a point of the monotonic clock; whether it came. Raises when the store is gone."""
        pause = _FIRST_PAUSE
        while not self.store.check([key]):
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True


@frozen(kw_only=True)
class Request:
    """What rank 0 tells the others: `ask` some of them for more, the `result`, or that the round `failed`."""

    kind: str
    body: str = ""
    ranks: tuple[int, ...] = ()
    causes: tuple[tuple[int, str], ...] = ()


@frozen(kw_only=True)
class Reply:
    """What a rank says: its message, or the error that it met instead."""

    body: str = ""
    error: str | None = None


_SAY = msgspec.json.Decoder(Request)
_HEAR = msgspec.json.Decoder(Reply)
_places: dict[int, RankPlace] = {}

Ask = Callable[[Iterable[int], str], dict[int, str]]
"""Rank 0's question to some ranks: their answers by rank. Raises `JobError` when one of them does not answer."""


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


def converse(
    place: RankPlace,
    message: str,
    *,
    lead: Callable[[list[str], Ask], str],
    answer: Callable[[str], str],
    timeout: float,
) -> str:
    """
    Say `message` on every rank, let rank 0 make one result of all of them, and return it on every rank.

    `lead(messages, ask)` runs on rank 0, `answer(question)` on a rank that it asks. Takes at most `timeout` seconds of
    waiting for other ranks (on other ranks than 0 a few more). Raises `JobError` on every rank that is left when
    one failed, died or did not come.
    """
    turn = _Turn(place, timeout)
    try:
        return turn.as_leader(message, lead) if place.rank == 0 else turn.as_follower(message, answer)
    finally:
        place.gone.clear()  # who comes back to the next turn is waited for again


def fail(place: RankPlace, error: BaseException) -> None:
    """Tell the other ranks that this one met an error instead of having something to say. Does not wait for them."""
    turn, text = _Turn(place, 0.0), f"{type(error).__name__}: {error}"[:2000]
    with contextlib.suppress(Exception):  # the store may be what failed, and the error itself must get out
        if place.rank == 0:
            turn.say(Request(kind="failed", causes=((0, text),)))
        else:
            place.put(turn.key("hear", place.rank), msgspec.json.encode(Reply(error=text)))


class _Turn:
    def __init__(self, place: RankPlace, timeout: float) -> None:
        self.place, self.timeout = place, timeout
        self.turn = place.turn + 1
        self.missed = self.skip_ended() if place.rank != 0 else None
        self.before, self.said = place.said, 0
        place.turn, place.said = self.turn, 0
        self.until = time.monotonic() + timeout

    def skip_ended(self) -> Request | None:
        """Go to the last of the turns that ended before this rank came, so that the next one is in step again."""
        ended = None
        while self.place.store.check([self.key("end")]):
            ended = _SAY.decode(self.place.take(self.key("end")))
            self.turn += 1
        if ended is not None:
            self.turn -= 1
        return ended

    def key(self, *parts: object, turn: int | None = None) -> str:
        return "/".join(("shardlint", str(turn or self.turn), *map(str, parts)))

    def say(self, what: Request) -> None:
        self.place.put(self.key("say", self.said), msgspec.json.encode(what))
        self.said += 1
        self.place.said = self.said
        if what.kind == "failed":
            self.place.put(self.key("end"), msgspec.json.encode(what))

    def as_leader(self, message: str, lead: Callable[[list[str], Ask], str]) -> str:
        self.place.put(self.key("lead"), b"1")
        try:
            heard = {0: message, **self.hear(range(1, self.place.world_size), "hear")}
            self.forget()
            result = lead([heard[rank] for rank in sorted(heard)], self.ask)
        except JobError as error:
            self.say(Request(kind="failed", causes=tuple(error.causes.items())))
            raise
        except BaseException as error:
            self.say(Request(kind="failed", causes=((0, f"{type(error).__name__}: {error}"),)))
            raise
        self.say(Request(kind="result", body=result))
        return result

    def ask(self, ranks: Iterable[int], question: str) -> dict[int, str]:
        wanted = tuple(sorted(set(ranks)))
        self.until = time.monotonic() + self.timeout
        number = self.said
        self.say(Request(kind="ask", body=question, ranks=wanted))
        return self.hear(wanted, "answer", number)

    def hear(self, ranks: Iterable[int], *parts: object) -> dict[int, str]:
        heard: dict[int, str] = {}
        causes: dict[int, str] = {}
        for rank in ranks:
            why = self.place.gone.get(rank)
            until = self.until if why is None else min(self.until, time.monotonic() + _GONE_SECONDS)
            if not self.place.await_key(self.key(*parts, rank), until):
                causes[rank] = why or f"did not take part within {self.timeout:g} s (dead, hanging, or it never called)"
                continue
            found = _HEAR.decode(self.place.take(self.key(*parts, rank)))
            if found.error is not None:
                causes[rank] = found.error
            heard[rank] = found.body
        if causes:
            raise JobError(causes)
        return heard

    def forget(self) -> None:
        """Free what the turn before left: everybody has come to this one, so nobody reads it any more."""
        parts: list[tuple[object, ...]] = [("hear", rank) for rank in range(1, self.place.world_size)]
        parts += [("say", number) for number in range(self.before)]
        for part in (("lead",), *parts):
            with contextlib.suppress(Exception):  # not every store can delete
                self.place.store.delete_key(self.key(*part, turn=self.turn - 1))

    def as_follower(self, message: str, answer: Callable[[str], str]) -> str:
        place = self.place
        if self.missed is not None:
            raise JobError(dict(self.missed.causes))
        place.put(self.key("hear", place.rank), msgspec.json.encode(Reply(body=message)))
        while True:
            say = self.next_say()
            if say.kind == "failed":
                raise JobError(dict(say.causes))
            if say.kind == "result":
                return say.body
            if place.rank in say.ranks:
                answered = msgspec.json.encode(_answered(answer, say.body))
                place.put(self.key("answer", self.said - 1, place.rank), answered)

    def next_say(self) -> Request:
        # Rank 0 may have come later than this rank and waits as long, so it gets its own time, and a little more.
        key = self.key("say", self.said)
        why = self.place.gone.get(0)
        until = time.monotonic() + (self.timeout if why is None else _GONE_SECONDS)
        try:
            came = self.place.await_key(key, until)
            if not came and why is not None:
                raise JobError({0: why})
            if not came:
                absent = self.absent()
                came = 0 not in absent and self.place.await_key(key, time.monotonic() + self.timeout + 5.0)
            if came:
                self.said += 1
                return _SAY.decode(self.place.take(key))
        except JobError:
            raise
        except Exception as error:
            cause = f"the store of the job is gone, so its host has died: {type(error).__name__}: {error}"
            raise JobError({0: cause[:500]}) from error
        raise JobError(dict.fromkeys(absent or [0], f"did not take part within {self.timeout:g} s"))

    def absent(self) -> list[int]:
        """The ranks that have not said anything in this turn; rank 0 says its first word to everybody."""
        others = (rank for rank in range(1, self.place.world_size) if rank != self.place.rank)
        found = [rank for rank in others if not self.place.store.check([self.key("hear", rank)])]
        started = self.place.store.check([self.key("lead")])
        return found if started else [0, *found]


def _answered(answer: Callable[[str], str], question: str) -> Reply:
    try:
        return Reply(body=answer(question))
    except Exception as error:
        return Reply(error=f"{type(error).__name__}: {error}")
