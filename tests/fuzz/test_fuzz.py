"""A sample of the mutated folders, and all that ever failed; `python -m tests.fuzz --count N` runs more."""

import os

import pytest

from .running import table

SAMPLE = 300
MANY = 20_000


def test_a_sample_of_mutated_folders():
    counts, wrong = table(range(SAMPLE))
    assert not wrong, counts
    assert counts["ok"]
    assert counts["clean error"]


@pytest.mark.skipif("SHARDLINT_FUZZ" not in os.environ, reason="takes minutes: set SHARDLINT_FUZZ=1")
def test_many_mutated_folders():
    counts, wrong = table(range(MANY))
    assert not wrong, counts
