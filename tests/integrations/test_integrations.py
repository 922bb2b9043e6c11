"""Plain loop, Trainer callback, pytest helper: each with its example from the docs, and with a faulty model."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from shardlint import LintError
from shardlint.integrations.loop import check
from shardlint.integrations.pytest import assert_clean
from shardlint.testing import base_snapshot

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def faulty():
    with torch.device("meta"):
        return nn.Linear(2, 2)


def run(name, *before):
    command = [sys.executable, "-W", "ignore", *before, str(EXAMPLES / name)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", ["plain_loop.py", "trainer.py"])
@pytest.mark.slow
def test_the_examples_run_as_they_stand(name):
    done = run(name)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained" in done.stdout


@pytest.mark.slow
@pytest.mark.distributed
def test_the_plain_loop_runs_under_torchrun():
    done = run("plain_loop.py", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("trained") == 2
    assert done.stderr.count("rules") == done.stderr.count("rules evaluated") or "evaluated" in done.stderr


@pytest.mark.slow
def test_the_pytest_example_passes():
    done = run("test_model.py", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_check_shows_the_report_and_stops():
    stream = io.StringIO()
    with pytest.raises(LintError, match="D401"):
        check(faulty(), stream=stream, config=False)
    assert "D401" in stream.getvalue()
    report = check(faulty(), stream=stream, config=False, raises=False)
    assert report.exit_status == 1


def test_assert_clean_fails_with_the_report():
    with pytest.raises(AssertionError, match="expected a clean lint, found 2 finding"):
        assert_clean(faulty(), config=False)
    assert_clean(nn.Linear(2, 2), config=False)


def test_assert_clean_takes_facts():
    assert_clean(base_snapshot("llama-fsdp2"), evaluated=["D302", "ranks-disagree"])


def test_assert_clean_asks_for_rules_that_ran():
    with pytest.raises(AssertionError, match="D313 ranks-disagree: no ranks facts were collected"):
        assert_clean(base_snapshot("llama-tp"), evaluated=["D313"])
    with pytest.raises(AssertionError, match="D999: no such rule ran"):
        assert_clean(base_snapshot("llama-tp"), evaluated=["D999"])


def test_assert_clean_leaves_lower_severities_alone():
    snapshot = base_snapshot("mixtral-ep")
    with pytest.raises(ValueError, match="expected one of"):
        assert_clean(snapshot, level="fatal")
    assert_clean(snapshot, level="error")


class State:
    is_world_process_zero = True


def test_the_callback_stops_a_faulty_model_and_knows_how_the_trainer_clips():
    from transformers import TrainingArguments

    from shardlint.integrations.transformers import ShardlintCallback, clips_per_mesh

    callback = ShardlintCallback(config=False)
    with pytest.raises(LintError, match="D401"):
        callback.on_train_begin(TrainingArguments(output_dir="unused"), State(), None, model=faulty())
    assert callback.report.exit_status == 1
    quiet = ShardlintCallback(config=False, raises=False)
    quiet.on_train_begin(TrainingArguments(output_dir="unused"), State(), None, model=nn.Linear(2, 2))
    assert quiet.report.exit_status == 0
    assert clips_per_mesh(TrainingArguments(output_dir="unused", max_grad_norm=0.0))


def test_the_callback_looks_below_the_wrappers_of_the_trainer():
    from types import SimpleNamespace

    from shardlint.integrations.transformers import ShardlintCallback

    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    wrapped = SimpleNamespace(optimizer=optimizer)
    callback = ShardlintCallback(config=False, raises=False, trainer=SimpleNamespace(model_wrapped=faulty()))
    callback.on_train_begin(SimpleNamespace(max_grad_norm=1.0), State(), None, model=nn.Linear(2, 2), optimizer=wrapped)
    assert any(item.code == "D401" for item in callback.report.findings)
