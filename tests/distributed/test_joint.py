"""Several ranks: one report, one exit status, and names for the ranks that fail, die, or do not come."""

import json
import subprocess
import sys

import pytest

from distributed.jobs import run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

WORLD = 4
LIMIT = 240


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joint")
    run_ranks(folder, WORLD, "joint_worker.py", expected=[0, -9, 0, 0], limit=LIMIT)
    return [json.loads((folder / f"seen.{rank}").read_text()) for rank in range(WORLD)]


def test_a_sound_job_passes_on_every_rank(seen):
    for rank in range(WORLD):
        assert (seen[rank]["sound"]["status"], seen[rank]["sound"]["findings"]) == (0, [])
        assert "D313" not in seen[rank]["sound"]["not_evaluated"]


def test_the_odd_rank_is_named_and_every_rank_gets_the_same_report(seen):
    reports = [{key: value for key, value in seen[rank]["odd"].items() if key != "seconds"} for rank in range(WORLD)]
    assert reports == [reports[0]] * WORLD
    assert reports[0]["status"] == 1
    found = {(code, subject): (ranks, message) for code, subject, ranks, message in reports[0]["findings"]}
    assert found["D313", "0.extra"][0] == [1]
    assert found["D313", "1.weight"] == ([1], "dtype: rank 0 has float32, rank 1 has bfloat16")
    assert all(code == "D313" for code, _ in found)


def test_an_error_on_one_rank_ends_the_others_with_its_text(seen):
    assert seen[2]["raises"]["error"] == "TargetError"
    for rank in (0, 1, 3):
        assert seen[rank]["raises"]["error"] == "JobError"
        assert "rank 2: TargetError: expected a torch.nn.Module" in seen[rank]["raises"]["text"]
        assert seen[rank]["raises"]["seconds"] < 45


def test_a_late_rank_is_named_and_told(seen):
    for rank in range(WORLD):
        assert seen[rank]["late"]["error"] == "JobError"
        assert "rank 3: did not take part within 1.5 s" in seen[rank]["late"]["text"]


def test_the_groups_of_the_job_stay_usable_and_linting_goes_on(seen):
    for rank in range(WORLD):
        assert seen[rank]["sum"] == WORLD
        assert seen[rank]["again"]["status"] == 0


def test_a_rank_may_lint_for_itself(seen):
    assert seen[0]["alone"]["status"] == 0
    assert "D313" in seen[0]["alone"]["not_evaluated"]


def test_a_dead_rank_is_named_within_the_limit(seen):
    for rank in (0, 2, 3):
        assert seen[rank]["dead"]["error"] == "JobError"
        assert "rank 1: did not take part within 2 s (dead, hanging, or it never called)" in seen[rank]["dead"]["text"]
        assert seen[rank]["dead"]["seconds"] < 30


BUILDER = """
import os, signal
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def model(fault=""):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    rank = mesh.get_local_rank()
    built = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if fault == "raise" and rank == 1:
        raise ValueError("no weights on this node")
    if fault == "frozen" and rank == 1:
        built[0].weight.requires_grad_(False)
    fully_shard(built[0], mesh=mesh)
    return fully_shard(built, mesh=mesh)

def plain():
    return nn.Linear(2, 2)
"""


def torchrun(folder, *arguments):
    (folder / "build.py").write_text(BUILDER)
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "shardlint", "lint", *arguments, "--isolated", "--rank-timeout", "90", "--select", "D2,D3"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_torchrun_gives_one_report(tmp_path):
    done = torchrun(tmp_path, "build.py:model", "--output-format", "json")
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)  # one document: only rank 0 writes
    assert report["verdict"] == "PASS"
    assert report["findings"] == []


def test_torchrun_fails_on_every_rank_and_names_the_odd_one(tmp_path):
    done = torchrun(tmp_path, "build.py:model", "--arg", "fault=frozen", "--output-format", "concise")
    assert done.returncode == 1
    assert done.stdout.count("D313") == 1
    assert "exitcode  : 1 " in done.stderr
    assert "requires_grad" in done.stdout or "requires grad" in done.stdout


def test_torchrun_reports_a_build_that_failed_on_one_rank(tmp_path):
    done = torchrun(tmp_path, "build.py:model", "--arg", "fault=raise", "--output-format", "concise")
    assert done.returncode == 1
    assert "D201" in done.stdout
    assert "no weights on this node" in done.stdout
    assert "D313" not in done.stdout  # what was never built lacks nothing


def test_torchrun_without_a_process_group_compares_all_the_same(tmp_path):
    done = torchrun(tmp_path, "build.py:plain", "--output-format", "json")
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    (ranks,) = [item for item in report["outcomes"] if item["code"] == "D313"]
    assert ranks["reason"].startswith("no two ranks share a mesh")
