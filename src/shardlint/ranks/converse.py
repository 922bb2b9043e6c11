"""
One question and answer between all ranks of a job, through its store.

Rank 0 leads: it reads what every rank says first, may ask some of them for more, and tells everybody the result.
Messages are JSON texts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from attrs import frozen

from .store import JobError, RankPlace

LEAVING_SECONDS = 5.0
"""How long rank 0 waits at most until its last word was read."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_GONE_SECONDS = 3.0
"""How long a rank is waited for that has been given up before."""


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


_REQUEST = msgspec.json.Decoder(Request)
_REPLY = msgspec.json.Decoder(Reply)

Ask = Callable[[Iterable[int], str], dict[int, str]]
"""Rank 0's question to some ranks: their answers by rank. Raises `JobError` when one of them does not answer."""


def converse(
    place: RankPlace,
    message: str,
    *,
    lead: Callable[[list[str], Ask], str],
    answer: Callable[[str], str],
    timeout: float,
    last: bool = False,
) -> str:
    """
    Say `message` on every rank, let rank 0 make one result of all of them, and return it on every rank.

    `lead(messages, ask)` runs on rank 0, `answer(question)` on a rank that it asks. Takes at most `timeout` seconds of
    waiting for other ranks (on other ranks than 0 a few more). With `last` rank 0 may leave the job afterwards, and
    the store with it: then it returns when the others have read the result, or after `LEAVING_SECONDS`. Raises
    `JobError` on every rank that is left when one failed, died or did not come.
    """
    turn = _Turn(place, timeout)
    try:
        if place.rank != 0:
            return turn.as_follower(message, answer)
        result = turn.as_leader(message, lead)
        if last:
            turn.wait_until_read(place.world_size - 1)
        return result
    finally:
        place.gone.clear()  # who comes back to the next turn is waited for again


def fail(place: RankPlace, error: BaseException) -> None:
    """
    Tell the other ranks that this one met an error instead of having something to say.

    Does not wait for them, but that rank 0, which may host the store, gives them `LEAVING_SECONDS` to read it.
    """
    turn, text = _Turn(place, 1.0), f"{type(error).__name__}: {error}"[:2000]
    if place.rank == 0:
        turn.say_failed(((0, text),), wait=isinstance(error, Exception))
    else:
        with contextlib.suppress(Exception):  # as above
            place.put(turn.key("hear", place.rank), msgspec.json.encode(Reply(error=text)))


class _Turn:
    def __init__(self, place: RankPlace, timeout: float) -> None:
        self.place, self.timeout = place, timeout
        place.answer_seconds = max(1.0, timeout)
        self.turn = place.turn + 1
        self.missed = self.skip_ended() if place.rank != 0 else None
        self.before, self.said = place.said, 0
        place.turn, place.said = self.turn, 0
        self.until_all = time.monotonic() + timeout

    def skip_ended(self) -> Request | None:
        """Go to the last of the turns that ended before this rank came, so that the next one is in step again."""
        ended = None
        while self.place.has(self.key("end")):
            ended = _REQUEST.decode(self.place.take(self.key("end")))
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

    def say_failed(self, causes: tuple[tuple[int, str], ...], *, wait: bool = True) -> None:
        with contextlib.suppress(Exception):  # the store may be what failed, and the error itself must get out
            self.say(Request(kind="failed", causes=causes))
            if wait:
                self.wait_until_read(self.place.world_size - len({0, *(rank for rank, _ in causes)}))

    def wait_until_read(self, readers: int) -> None:
        """Return when so many ranks have read the last word of this turn, or have had the time to."""
        key, pause = self.key("read"), _FIRST_PAUSE
        until = time.monotonic() + LEAVING_SECONDS
        while self.place.count(key, 0) < readers and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def have_read(self) -> None:
        """Say that this rank has read the last word of this turn."""
        with contextlib.suppress(JobError):  # rank 0 has not waited: nothing more is needed of it
            self.place.count(self.key("read"), 1)

    def as_leader(self, message: str, lead: Callable[[list[str], Ask], str]) -> str:
        self.place.put(self.key("lead"), b"1")
        try:
            heard = {0: message, **self.hear(range(1, self.place.world_size), "hear")}
            self.forget()
            result = lead([heard[rank] for rank in sorted(heard)], self.ask)
        except JobError as error:
            self.say_failed(tuple(error.causes.items()))
            raise
        except BaseException as error:
            self.say_failed(((0, f"{type(error).__name__}: {error}"),))
            raise
        self.say(Request(kind="result", body=result))
        return result

    def ask(self, ranks: Iterable[int], question: str) -> dict[int, str]:
        wanted = tuple(sorted(set(ranks)))
        self.until_all = time.monotonic() + self.timeout
        number = self.said
        self.say(Request(kind="ask", body=question, ranks=wanted))
        return self.hear(wanted, "answer", number)

    def hear(self, ranks: Iterable[int], *parts: object) -> dict[int, str]:
        messages, causes = self.place.hear({rank: self.key(*parts, rank) for rank in ranks}, self)
        replies = {rank: _REPLY.decode(message) for rank, message in messages.items()}
        causes |= {rank: reply.error for rank, reply in replies.items() if reply.error is not None}
        if causes:
            raise JobError(causes)
        return {rank: reply.body for rank, reply in replies.items()}

    def until(self, rank: int) -> float:
        gone = rank in self.place.gone
        return min(self.until_all, time.monotonic() + _GONE_SECONDS) if gone else self.until_all

    def given_up(self, rank: int, owed: Mapping[int, str]) -> str:
        absent = f"did not take part within {self.timeout:g} s (dead, hanging, or it never called)"
        return self.place.gone.get(rank, absent)

    def forget(self) -> None:
        """Free what the turn before left: everybody has come to this one, so nobody reads it any more."""
        parts: list[tuple[object, ...]] = [("hear", rank) for rank in range(1, self.place.world_size)]
        parts += [("say", number) for number in range(self.before)]
        for part in (("lead",), ("read",), *parts):
            self.place.forget(self.key(*part, turn=self.turn - 1))

    def as_follower(self, message: str, answer: Callable[[str], str]) -> str:
        place = self.place
        if self.missed is not None:
            self.have_read()
            raise JobError(dict(self.missed.causes))
        place.put(self.key("hear", place.rank), msgspec.json.encode(Reply(body=message)))
        while True:
            say = self.next_say()
            if say.kind != "ask":
                self.have_read()
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
        came = self.place.await_key(key, until)
        if not came and why is not None:
            raise JobError({0: why})
        if not came:
            absent = self.absent()
            came = 0 not in absent and self.place.await_key(key, time.monotonic() + self.timeout + 5.0)
        if not came:
            raise JobError(dict.fromkeys(absent or [0], f"did not take part within {self.timeout:g} s"))
        self.said += 1
        return _REQUEST.decode(self.place.take(key))

    def absent(self) -> list[int]:
        """The ranks that have not said anything in this turn; rank 0 says its first word to everybody."""
        others = (rank for rank in range(1, self.place.world_size) if rank != self.place.rank)
        found = [rank for rank in others if not self.place.has(self.key("hear", rank))]
        started = self.place.has(self.key("lead"))
        return found if started else [0, *found]


def _answered(answer: Callable[[str], str], question: str) -> Reply:
    try:
        return Reply(body=answer(question))
    except Exception as error:
        return Reply(error=f"{type(error).__name__}: {error}")
