"""One question and answer between all ranks, as threads over the stores that torch offers."""

import threading
import time

import pytest
import torch.distributed as dist

from shardlint.ranks.converse import converse, fail
from shardlint.ranks.store import JobError, RankPlace
from support.rank_threads import run_ranks


class StoreThatCannotWait:
    """What a store can do beside waiting: a wait of torch's own that ends without the key prints two warnings."""

    def __init__(self, store):
        self.set, self.get, self.check, self.delete_key = store.set, store.get, store.check, store.delete_key


def test_a_late_rank_is_awaited_without_the_waiting_of_the_store():
    def late(place):
        if place.rank == 1:
            time.sleep(1.2)
        return echo(RankPlace(StoreThatCannotWait(place.store), place.rank, place.world_size))

    assert run_ranks(2, late)[0][0] == "hello from 0 | hello from 1"


def echo(place, timeout=5.0, message=None):
    return converse(
        place,
        message or f"hello from {place.rank}",
        lead=lambda messages, ask: " | ".join(messages),
        answer=str.upper,
        timeout=timeout,
    )


@pytest.mark.parametrize("world", [2, 4, 8])
def test_every_rank_gets_what_rank_0_made_of_all_messages(world):
    results = run_ranks(world, echo)
    wanted = " | ".join(f"hello from {rank}" for rank in range(world))
    assert [results[rank][0] for rank in range(world)] == [wanted] * world


def test_rank_0_may_ask_some_ranks_several_times():
    def talk(place):
        return converse(
            place,
            "",
            lead=lambda messages, ask: str((ask([1, 3], "more"), ask([2], "again"))),
            answer=lambda question: f"{place.rank}: {question}",
            timeout=5.0,
        )

    results = run_ranks(4, talk)
    assert {results[rank][0] for rank in range(4)} == {"({1: '1: more', 3: '3: more'}, {2: '2: again'})"}


def test_many_turns_leave_few_keys():
    store = dist.HashStore()

    def rank(number):
        place = RankPlace(store, number, 3)
        for turn in range(20):
            assert "turn 7" not in echo(place, message=f"turn {turn}") or turn == 7

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert store.num_keys() < 8  # those of the last turn


@pytest.mark.parametrize("absent", [(0,), (2,), (1, 3)])
def test_ranks_that_do_not_come_are_named_within_the_limit(absent):
    started = time.monotonic()
    results = run_ranks(4, lambda place: echo(place, timeout=1.0), absent=absent)
    assert time.monotonic() - started < 20
    for number in set(range(4)) - set(absent):
        error = results[number][0]
        assert isinstance(error, JobError)
        assert set(error.causes) == set(absent)
        assert "did not take part within 1 s" in str(error)


@pytest.mark.parametrize("culprit", [0, 2])
def test_an_error_of_one_rank_ends_all_of_them_at_once(culprit):
    def talk(place):
        if place.rank == culprit:
            fail(place, ValueError("no such layer"))
            raise ValueError("no such layer")
        return echo(place, timeout=30.0)

    started = time.monotonic()
    results = run_ranks(4, talk)
    assert time.monotonic() - started < 15
    for number in set(range(4)) - {culprit}:
        error = results[number][0]
        assert isinstance(error, JobError)
        assert error.causes == {culprit: "ValueError: no such layer"}


def test_an_error_while_leading_or_answering_is_told_to_everybody():
    def leading(messages, ask):
        raise KeyError("lost")

    results = run_ranks(2, lambda place: converse(place, "", lead=leading, answer=str, timeout=5.0))
    assert isinstance(results[0][0], KeyError)
    assert results[1][0].causes == {0: "KeyError: 'lost'"}

    def answering(question):
        raise LookupError("gone")

    results = run_ranks(
        3, lambda place: converse(place, "", lead=lambda m, ask: str(ask([2], "x")), answer=answering, timeout=5.0)
    )
    assert [results[rank][0].causes for rank in range(3)] == [{2: "LookupError: gone"}] * 3


def test_a_rank_that_missed_turns_is_told_once_and_then_in_step_again():
    gave_up, told = threading.Event(), threading.Event()

    def talk(place):
        if place.rank == 0:
            for _ in range(3):
                with pytest.raises(JobError, match="rank 1: did not take part"):
                    echo(place, timeout=0.2)
            gave_up.set()
            assert told.wait(30)
        else:
            assert gave_up.wait(30)
            with pytest.raises(JobError, match="rank 1: did not take part"):
                echo(place, timeout=20.0)
            told.set()
        return echo(place, timeout=20.0)

    results = run_ranks(2, talk)
    assert results[0][0] == results[1][0] == "hello from 0 | hello from 1"


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_that_was_given_up_before_is_hardly_waited_for_and_only_once(monkeypatch, lost):
    monkeypatch.setattr("shardlint.ranks.converse._GONE_SECONDS", 0.3)
    present = {}

    def function(place):
        place.gone[lost] = "it died while it read"
        present[place.rank] = place
        return echo(place, timeout=600.0)  # joining the threads would fail long before

    for error, place in run_ranks(3, function, absent=(lost,)).values():
        assert isinstance(error, JobError)
        assert error.causes == {lost: "it died while it read"}
        assert place.gone == {}
    assert set(present) == {0, 1, 2} - {lost}
