"""Ranks that talk through a store: what is said arrives whole, and whoever is silent or fails is named to all."""

from __future__ import annotations

import threading
import time

import pytest
import torch.distributed as dist

from shardlint.ranks import exchange as module
from shardlint.ranks import store
from shardlint.ranks.exchange import Exchange, RankError
from shardlint.ranks.store import RankPlace

WORLD = 3


@pytest.fixture
def ranks(monkeypatch):
    """Runs a function of an exchange on every rank, a thread each; returns what each returned or raised."""
    store = dist.HashStore()
    mine = threading.local()
    monkeypatch.setattr(module, "joined_place", lambda: mine.place)
    monkeypatch.setattr(module, "expect_no_more", lambda rank, why: None)
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)

    def run(work, **settings):
        monkeypatch.setattr(module, "_CALLS", iter([1] * WORLD))
        found = {}

        def one(rank):
            mine.place = RankPlace(store, rank, WORLD)
            try:
                with Exchange(**settings) as exchange:
                    found[rank] = work(exchange)
            except BaseException as error:
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return [found[rank] for rank in range(WORLD)]

    run.store = store
    return run


def test_what_is_said_arrives_whole_whatever_its_bytes_are(ranks, monkeypatch):
    monkeypatch.setattr(store, "CHUNK_BYTES", 3)  # cuts through characters

    def work(exchange):
        heard = exchange.gather("gr\u00f6\u00dfe\u20ac".encode() * (exchange.rank + 1))
        own = exchange.scatter([b"", b"one", b"two"] if heard else [])
        return heard, own, exchange.broadcast("f\u00fcr alle".encode() if heard else b"")

    found = ranks(work, limit=20)
    assert found[0] == ([("gr\u00f6\u00dfe\u20ac" * n).encode() for n in (1, 2, 3)], b"", "f\u00fcr alle".encode())
    assert [item[1:] for item in found[1:]] == [(b"one", "f\u00fcr alle".encode()), (b"two", "f\u00fcr alle".encode())]


@pytest.mark.parametrize("chunk", [1, 100])
def test_only_what_all_read_is_left_in_the_store_until_they_meet_again(ranks, monkeypatch, chunk):
    monkeypatch.setattr(store, "CHUNK_BYTES", chunk)

    def work(exchange):
        exchange.gather(b"x")
        exchange.scatter([b"1", b"2", b"3"])
        exchange.broadcast(b"all")
        exchange.gather(b"done")
        return

    assert ranks(work, limit=20) == [None] * WORLD
    left = {key for key in range(4) for rank in (*range(WORLD), "all") if there(ranks, f"{key}/{rank}")}
    assert left == set()
    assert not any(there(ranks, f"{key}/{rank}/0") for key in range(4) for rank in (*range(WORLD), "all"))


def there(ranks, key):
    return ranks.store.check([f"shardlint/weights/1/{key}"])


@pytest.mark.parametrize("bad", range(WORLD))
def test_a_rank_that_raises_is_named_on_all_at_once(ranks, bad):
    def work(exchange):
        if exchange.rank == bad:
            raise ZeroDivisionError("boom")
        exchange.gather(b"")
        return exchange.broadcast(b"")

    found = ranks(work, limit=600)  # which nobody waits for
    assert isinstance(found[bad], ZeroDivisionError)
    for rank in set(range(WORLD)) - {bad}:
        assert isinstance(found[rank], RankError)
        assert (found[rank].rank, str(found[rank])) == (bad, f"rank {bad}: ZeroDivisionError: boom")


@pytest.mark.parametrize("bad", range(WORLD))
def test_a_silent_rank_is_named_by_all_also_by_those_that_wait_for_another(ranks, bad):
    """Ranks wait for rank 0 only: they must not take it for the silent one because it gave up first."""

    def work(exchange):
        if exchange.rank == bad:
            exchange._done.set()  # dead: no more beats, nothing said, nothing told
            return "dead"
        exchange.gather(b"")
        return exchange.broadcast(b"")

    found = ranks(work, limit=1.0)
    for rank in set(range(WORLD)) - {bad}:
        assert isinstance(found[rank], RankError)
        assert found[rank].rank == bad
        assert "has not been heard of for 1 seconds" in str(found[rank])
        assert found[rank].world_size == WORLD


def test_a_rank_that_beats_and_does_not_get_on_hangs(ranks, monkeypatch):
    monkeypatch.setattr(module, "STANDSTILL", 2)
    release = threading.Event()

    def work(exchange):
        if exchange.rank == 1:
            release.wait(30)
            exchange.gather(b"")
            return exchange.broadcast(b"")
        try:
            exchange.gather(b"")
            return exchange.broadcast(b"")
        finally:
            release.set()

    for outcome in ranks(work, limit=0.5):
        assert isinstance(outcome, RankError)
        assert (outcome.rank, str(outcome)) == (1, "rank 1 is alive, but has not got on for 1 seconds")


def test_a_slow_rank_that_gets_on_is_waited_for_by_all(ranks, monkeypatch):
    monkeypatch.setattr(module, "STANDSTILL", 2)

    def work(exchange):
        if exchange.rank == 1:
            for _ in range(20):  # twice as long as a rank may stand still
                time.sleep(0.1)
                exchange.step()
        exchange.gather(b"")
        return exchange.broadcast(b"fine")

    assert ranks(work, limit=0.5) == [b"fine"] * WORLD


def test_a_job_that_ends_waits_less(ranks, monkeypatch):
    monkeypatch.setattr(module, "ENDING_SECONDS", 0.5)

    def work(exchange):
        if exchange.rank == 2:
            exchange._done.set()
            return "dead"
        exchange.gather(b"")
        return exchange.broadcast(b"")

    for outcome in ranks(work, limit=600, stop=lambda: True)[:2]:
        assert isinstance(outcome, RankError)
        assert "rank 2 has not been heard of for 0.5 seconds" in str(outcome)


def test_a_store_that_is_gone_is_its_host(monkeypatch):
    class Gone:
        def set(self, key, value):
            pass

        def check(self, keys):
            raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(module, "joined_place", lambda: RankPlace(Gone(), 1, 2))
    monkeypatch.setattr(module, "expect_no_more", lambda rank, why: None)
    with pytest.raises(RankError, match="its host has died") as caught, Exchange() as exchange:
        exchange.broadcast(b"")
    assert caught.value.rank == 0


def test_alone_it_talks_to_itself(monkeypatch):
    monkeypatch.setattr(module, "joined_place", lambda: None)
    with Exchange() as exchange:
        assert exchange.gather(b"a") == [b"a"]
        assert exchange.scatter([b"b"]) == b"b"
        assert exchange.broadcast(b"c") == b"c"
        assert (exchange.rank, exchange.world_size, exchange.sent) == (0, 1, 0)
