"""The store of a job: messages arrive whole and are freed, who does not come is named, and a dead store is an error."""

import time

import pytest
import torch.distributed as dist

from shardlint.ranks import store
from shardlint.ranks.store import JobError, RankPlace


def test_the_place_that_was_joined_is_found_again_and_never_waited_for(monkeypatch):
    place = RankPlace(dist.HashStore(), 1, 2)
    monkeypatch.setattr(store, "_places", {})
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert store.joined_place() is None
    store._places[0] = place
    assert store.joined_place() is place
    store.expect_no_more(1, "this rank itself")
    store.expect_no_more(0, "it died")
    assert place.gone == {0: "it died"}


@pytest.mark.parametrize("message", [b"", b"=", b"#2", b"0123456", b"\x00\xff" * 5])
def test_messages_of_any_bytes_and_length_arrive_whole_and_leave_nothing(monkeypatch, message):
    monkeypatch.setattr(store, "CHUNK_BYTES", 3)
    shared = dist.HashStore()
    here, there = RankPlace(shared, 0, 2), RankPlace(shared, 1, 2)
    here.put("key", message)
    assert there.take("key") == message
    assert (here.sent, there.received) == (len(message), len(message))
    here.forget("key")
    assert shared.num_keys() == 0
    here.forget("key")


class Impatience:
    def __init__(self):
        self.waits = {}

    def until(self, rank):
        return time.monotonic()

    def given_up(self, rank, owed):
        self.waits[rank] = self.waits.get(rank, 0) + 1
        return f"gave up; {sorted(owed)} are owed" if self.waits[rank] > 2 else None


def test_who_is_given_up_does_not_hide_who_has_spoken():
    place = RankPlace(dist.HashStore(), 0, 4)
    place.put("from/2", b"here")
    heard, causes = place.hear({rank: f"from/{rank}" for rank in (1, 2, 3)}, Impatience())
    assert heard == {2: b"here"}
    assert causes == {1: "gave up; [1, 2, 3] are owed", 3: "gave up; [3] are owed"}


def test_a_store_that_does_not_answer_names_the_rank_of_its_host():
    class Dead:
        def check(self, keys):
            raise ConnectionError("reset by peer")

    with pytest.raises(JobError) as raised:
        RankPlace(Dead(), 1, 2).hear({0: "key"}, Impatience())
    assert raised.value.causes == {
        0: "the store of the job is gone, so its host has died: ConnectionError: reset by peer"
    }
