import pytest

from distributed.jobs import run_ranks
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.facts.codec import decode_facts
from shardlint_rules.pack import shardlint_rules

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
    run_ranks(folder, world, "worker.py", *scenarios, limit=LIMIT)
    return Job(folder, world)


@pytest.fixture(scope="session")
def four(tmp_path_factory):
    return run_workers(tmp_path_factory.mktemp("four"), 4)


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    return run_workers(tmp_path_factory.mktemp("two"), 2, "fsdp2", "fault_tie_split", "fault_ignored", "fsdp1", "ddp")
