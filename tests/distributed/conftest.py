import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardlint.facts.codec import decode_facts
from shardlint.runner import SelectedRule, Status, evaluate
from shardlint_rules.pack import shardlint_rules

WORKER = Path(__file__).with_name("worker.py")
RULES = [rule for rule in shardlint_rules() if rule.code.startswith("D3") or rule.code in ("D206", "D209", "D211")]
LIMIT = 420


class Job:
    """The facts that every rank of one run of the worker wrote."""

    def __init__(self, folder, world):
        self.folder, self.world = folder, world

    def facts(self, name, rank=0):
        path = self.folder / f"{name}.{rank}.json"
        if not path.exists():
            errors = [item.read_text() for item in sorted(self.folder.glob("*.error"))]
            raise AssertionError(f"the job wrote no facts {name!r}; errors of its scenarios:\n" + "\n".join(errors))
        return decode_facts(path.read_bytes())

    def evaluate(self, name, rank=0):
        return evaluate(self.facts(name, rank), [SelectedRule(rule=rule()) for rule in RULES])

    def findings(self, name, rank=0):
        evaluation = self.evaluate(name, rank)
        crashed = [outcome for outcome in evaluation.outcomes if outcome.status is Status.CRASHED]
        assert not crashed, crashed
        return evaluation.findings

    def codes(self, name, rank=0):
        return {(finding.code, finding.subject) for finding in self.findings(name, rank)}


def run_workers(folder, world, *scenarios):
    command = [sys.executable, "-W", "ignore", str(WORKER), str(folder)]
    logs = [folder / f"{rank}.log" for rank in range(world)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("wb") as stream:
            ranks.append(subprocess.Popen([*command, str(rank), str(world), *scenarios], stdout=stream, stderr=stream))
    try:
        deadline = time.monotonic() + LIMIT
        statuses = [rank.wait(max(1, deadline - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert statuses == [0] * world, "\n".join(log.read_text()[-2000:] for log in logs)
    return Job(folder, world)


@pytest.fixture(scope="session")
def four(tmp_path_factory):
    return run_workers(tmp_path_factory.mktemp("four"), 4)


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    return run_workers(tmp_path_factory.mktemp("two"), 2, "fsdp2", "fault_tie_split", "fault_ignored", "fsdp1", "ddp")
