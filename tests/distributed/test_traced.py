"""Traced steps on two ranks: healthy ones are silent and unchanged, a unit entered on one rank is named (D710)."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

WORLD = 2
LIMIT = 300
FAMILIES = ("llama", "mixtral", "t5", "bert")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    worker = str(Path(__file__).with_name("trace_worker.py"))
    ranks = []
    for rank in range(WORLD):
        with (folder / f"{rank}.log").open("wb") as log:
            command = [sys.executable, "-W", "ignore", worker, str(folder), str(rank), str(WORLD)]
            ranks.append(subprocess.Popen(command, stdout=log, stderr=log))
    try:
        deadline = time.monotonic() + LIMIT
        statuses = [rank.wait(max(1, deadline - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert statuses == [0] * WORLD, "\n".join((folder / f"{rank}.log").read_text()[-2500:] for rank in range(WORLD))
    return [json.loads((folder / f"seen.{rank}").read_text()) for rank in range(WORLD)]


def alarms(result):
    return [finding for finding in result["findings"] if finding[2] != "info"]


@pytest.mark.parametrize("how", ["fsdp2", "ddp"])
@pytest.mark.parametrize("family", FAMILIES)
def test_healthy_steps_are_silent(seen, family, how):
    for rank in range(WORLD):
        result = seen[rank][f"{how} {family}"]
        assert alarms(result) == []
        assert {"D701", "D702", "D703", "D706", "D707", "D710"} <= set(result["clean"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_traced_step_gives_the_same_bits(seen, family):
    for rank in range(WORLD):
        assert seen[rank][f"fsdp2 {family}"]["same"] is True
        assert len(seen[rank][f"fsdp2 {family}"]["order"]) > 2


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
    assert "D710" in seen[0]["unused"]["clean"]
