"""A store that does not answer: a rank gives up, and is told at once the next time."""

import threading

import pytest

from shardlint.ranks.deadline import StoreLine, StoreSilentError
from shardlint.ranks.store import JobError, RankPlace


class Frozen:
    """A store whose host is frozen until `thaw` is set."""

    def __init__(self):
        self.thaw = threading.Event()
        self.calls = 0

    def check(self, keys):
        self.calls += 1
        self.thaw.wait(60)
        return True


def test_a_call_that_is_not_answered_ends_at_its_deadline_and_the_next_at_once():
    store = Frozen()
    line = StoreLine(store)
    with pytest.raises(StoreSilentError, match=r"0\.05 s"):
        line.call("check", ["key"], seconds=0.05)
    with pytest.raises(StoreSilentError, match="stopped answering"):
        line.call("check", ["key"], seconds=60)
    assert store.calls == 1
    store.thaw.set()


def test_what_the_store_raises_is_raised_by_the_call():
    class Broken:
        def check(self, keys):
            raise ConnectionError("reset by peer")

    with pytest.raises(ConnectionError):
        StoreLine(Broken()).call("check", ["key"], seconds=60)


def test_a_silent_store_names_the_rank_of_its_host():
    store = Frozen()
    place = RankPlace(store, 1, 2, answer_seconds=0.05)
    with pytest.raises(JobError) as raised:
        place.has("key")
    assert raised.value.causes == {
        0: "the store of the job does not answer, so its host hangs: it has not answered for 0.05 s"
    }
    store.thaw.set()
