"""A rank that is killed, frozen or ended at some stage of the command: nobody hangs, and the others name it."""

import pytest

from distributed.faults import LIMIT, WORLD, strike

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.mark.parametrize(
    ("stage", "victim", "how"),
    [("comparing", 1, "killed"), ("reading", 0, "killed"), ("comparing", 0, "frozen"), ("agreeing", 1, "frozen")],
)
def test_the_others_end_and_name_it(tmp_path, stage, victim, how):
    seen = strike(tmp_path, stage, victim, how)
    others = seen.others(victim)
    assert len(others) == WORLD - 1
    for rank in others:
        assert seen.statuses[rank] == 2, seen.texts[rank]
        assert f"rank {victim}" in seen.texts[rank] or "host" in seen.texts[rank]
        assert "internal error" not in seen.texts[rank]
        assert seen.seconds[rank] < LIMIT


@pytest.mark.parametrize("stage", ["building", "comparing", "reading", "reporting"])
def test_a_rank_that_is_asked_to_end_says_so(tmp_path, stage):
    seen = strike(tmp_path, stage, 1, "ended")
    assert seen.statuses[1] == 130, seen.texts[1]
    assert all("internal error" not in text for text in seen.texts.values())
