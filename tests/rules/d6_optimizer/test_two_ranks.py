"""Two real ranks: uneven shards, FSDP1, ZeRO and DDP are clean around a step; a NaN is found on its rank."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def test_two_ranks(tmp_path):
    worker = str(Path(__file__).with_name("worker.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", worker, str(tmp_path), str(rank), "2"], stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=300)[1].decode()[-2000:] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert len(first) == 13
    assert {name: found for name, found in first.items() if found} == {}
    assert {name: found for name, found in second.items() if found} == {
        "nan on rank 1": [["D408", "lm_head.weight", [1]]]
    }
