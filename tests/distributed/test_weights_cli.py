"""The command on two ranks, without a process group: one report, one exit status, a name for who failed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

WORLD = 2
BUILD = """
import os, signal, time
import torch
from shardlint.weights.compare import threads
from shardlint.weights.storage import stored_tensors

rank = int(os.environ["RANK"])


def model(fault="none"):
    found = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 3, bias=False)})
    found.a.weight.data[:] = torch.arange(12.0).reshape(3, 4)
    if rank == 1 and fault == "damaged":
        found.a.weight.data[1, 2] += 1
    if rank == 1 and fault == "killed":
        threads.check_tile = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and fault == "unreadable":
        def broken(*_):
            raise PermissionError(13, "Permission denied", "model.safetensors")
        stored_tensors.Files.read_into = broken
    return found
"""


@pytest.fixture
def ranks(tmp_path):
    """Runs the command on every rank; returns exit statuses, outputs and the summary of the report."""
    (tmp_path / "build.py").write_text(BUILD)
    save_file({"a.weight": torch.arange(12.0).reshape(3, 4)}, tmp_path / "model.safetensors")

    def run(*arguments):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-W", "ignore", "-m", "shardlint", "lint", *arguments, "--isolated"]
        command += ["--select", "V002", "--weight-report", "out"]
        job = {"WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1"}
        started = [
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env=os.environ | job | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(WORLD)
        ]
        try:
            told = [process.communicate(timeout=200) for process in started]
        finally:
            for process in started:
                process.kill()
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        return [process.returncode for process in started], told, summary

    return run


pytestmark = pytest.mark.distributed
MODEL = ("build.py:model", "--checkpoint", "model.safetensors")


def test_the_ranks_verify_together_and_divide_checkpoints(ranks):
    statuses, told, summary = ranks(*MODEL, "--arg", "fault=damaged", "--replicas", "full")
    assert statuses == [1, 1], told
    assert "rank 1" in told[0][0]
    assert told[1][0] == ""
    assert (summary["world_size"], summary["verdict"], summary["elements"]) == (2, "FAIL", 24)
    assert summary["worst"][0]["first"]["rank"] == 1
    statuses, told, summary = ranks("model.safetensors", "--reference", "model.safetensors")
    assert statuses == [0, 0], told
    assert (summary["world_size"], summary["verdict"], summary["compared_bytes"]) == (2, "PASS", 48)


@pytest.mark.parametrize(
    ("fault", "statuses", "text"),
    [
        ("unreadable", [1, 1], "rank 1 could not compare: PermissionError: [Errno 13] Permission denied"),
        ("killed", [2, -9], "rank 1 has not been heard of for 15 seconds"),
    ],
)
def test_a_rank_that_fails_is_named_and_nobody_hangs(ranks, fault, statuses, text):
    arguments = ("--arg", f"fault={fault}", "--rank-timeout", "15", "--replicas", "full")
    found, told, summary = ranks(*MODEL, *arguments)
    assert found == statuses, told
    assert text in " ".join("".join(told[0]).split())
    assert summary["verdict"] == "FAIL"
    assert [item["rank"] for item in summary["rank_errors"]] == [1]
