"""Traced steps on two ranks: healthy ones are silent and unchanged, a unit entered on one rank is named (D710)."""

import json

import pytest

from distributed.jobs import run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

WORLD = 2
LIMIT = 300
FAMILIES = ("llama", "mixtral", "t5", "bert")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    run_ranks(folder, WORLD, "trace_worker.py", limit=LIMIT)
    return [json.loads((folder / f"seen.{rank}").read_text()) for rank in range(WORLD)]


def alarms(result):
    return [finding for finding in result["findings"] if finding[2] != "info"]


def assert_silent(result):
    """Nothing was found; only the rules of prefetches and gathers may have had nothing to judge."""
    assert alarms(result) == []
    assert {"D701", "D706", "D707", "D710"} <= set(result["clean"])
    assert {"D702", "D703"} <= {*result["clean"], *result["nothing"]}


@pytest.mark.parametrize("how", ["fsdp2", "ddp"])
@pytest.mark.parametrize("family", FAMILIES)
def test_healthy_steps_are_silent(seen, family, how):
    for rank in range(WORLD):
        assert_silent(seen[rank][f"{how} {family}"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_traced_step_gives_the_same_bits(seen, family):
    for rank in range(WORLD):
        assert seen[rank][f"fsdp2 {family}"]["same"] is True
        assert len(seen[rank][f"fsdp2 {family}"]["order"]) > 2


@pytest.mark.parametrize("name", ["fsdp1 originals", "fsdp1 flat", "accumulated", "evaluated", "frozen unit"])
def test_right_steps_that_look_odd_are_silent(seen, name):
    for rank in range(WORLD):
        assert_silent(seen[rank][name])
    assert ("fsdp1" in seen[0][name]["kinds"]) == name.startswith("fsdp1")


def test_d703_a_prefetch_that_somebody_asked_for_and_nobody_used(seen):
    found = alarms(seen[0]["frozen unit wanted"])
    assert ("D703", "model.embed_tokens", "warning") in {
        (code, subject, severity) for code, subject, severity, *_ in found
    }


@pytest.mark.parametrize("originals", [True, False])
def test_d706_a_unit_of_fsdp1_that_no_forward_calls(seen, originals):
    found = alarms(seen[0][f"fsdp1 bypassed {originals}"])
    assert found
    assert {finding[0] for finding in found} == {"D706"}
    assert all("model.layers.1" in finding[1] for finding in found)


def test_d710_a_unit_that_one_rank_enters_alone(seen):
    for rank in range(WORLD):
        result = seen[rank]["entered"]
        found = {finding[1]: finding for finding in result["findings"] if finding[0] == "D710"}
        assert set(found) == {"extra"}
        assert found["extra"][2:4] == ["error", [1]]
        assert "ran forward on rank 1 and not on rank 0" in found["extra"][4]
    assert any(seen[rank]["entered"]["raised"] for rank in range(WORLD))


def test_pipeline_stages_and_branches_that_ddp_copes_with_are_silent(seen):
    for name in ("pipeline", "unused"):
        for rank in range(WORLD):
            assert [finding for finding in seen[rank][name]["findings"] if finding[0] == "D710"] == []
    assert "D710" not in seen[0]["pipeline"]["clean"]
    assert "D710" in seen[0]["unused"]["nothing"]
