"""The options of heavy rules on the command line."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from shardlint.cli.heavy_options import ProgressLine, SizeType, shown_progress
from shardlint.cli.interrupts import Interruption
from shardlint.target import LiveTarget
from support.shrink import quiet


@pytest.fixture
def folders(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_file({"a.weight": torch.arange(12.0).reshape(3, 4)}, tmp_path / name / "model.safetensors")
    return tmp_path / "one", tmp_path / "two"


def test_a_checkpoint_against_another(run, folders, tmp_path):
    one, two = folders
    same = run("lint", str(one), "--reference", str(two), "--isolated", "--select", "V002")
    assert same.status == 0, same.out
    save_file({"a.weight": torch.zeros(3, 4)}, two / "model.safetensors")
    reports = tmp_path / "reports"
    found = run(
        "lint", str(one), "--reference", str(two), "--isolated", "--select", "V002", "--weight-report", str(reports)
    )
    assert found.status == 1
    assert "11 of 12 elements" in found.out
    assert (reports / "tensors.csv").is_file()
    sampled = run("lint", str(one), "--reference", str(one), "--isolated", "--select", "V002", "--sample", "0.5")
    assert sampled.status == 2
    assert "sample" in sampled.out


BUILDER = """
import torch


def model():
    found = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 3, bias=False)})
    found.a.weight.data[:] = torch.arange(12.0).reshape(3, 4)
    return found


def damaged():
    found = model()
    found.a.weight.data[2, 1] += 1
    return found
"""


def test_a_model_against_a_folder_of_torch(run, tmp_path):
    (tmp_path / "dcp_build.py").write_text(BUILDER)
    state = {"model": {"a.weight": torch.arange(12.0).reshape(3, 4)}, "optim": {"a": {"exp_avg": torch.ones(3, 4)}}}
    with quiet():
        dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    right = run("lint", "dcp_build.py:model", "--checkpoint", "dcp", "--heavy", "--isolated")
    assert right.status == 0, right.out
    assert right.out.rstrip().endswith("PASS")
    wrong = run("lint", "dcp_build.py:damaged", "--checkpoint", "dcp", "--isolated", "--select", "V002")
    assert wrong.status == 1
    assert "a.weight[2, 1]" in " ".join(wrong.out.split())
    assert "model.a.weight[2, 1]" in " ".join(wrong.out.split())


def test_a_look_at_a_part_is_no_pass_without_the_rule_by_name(run, folders):
    one, two = (str(folder) for folder in folders)
    whole = run("lint", one, "--reference", two, "--isolated")
    assert whole.status == 0, whole.out
    assert whole.out.rstrip().endswith("PASS")
    part = run("lint", one, "--reference", two, "--isolated", "--sample", "0.5")
    assert (part.status, part.out.rstrip().rpartition("| ")[2]) == (2, "BLOCKED")
    assert "V002 weights-differ has not looked at everything: only a sample" in " ".join(part.out.split())


def test_checkpoints_that_cannot_be_related_are_no_pass(run, folders):
    one, two = folders
    save_file({"b.weight": torch.zeros(3, 4)}, two / "model.safetensors")
    found = run("lint", str(one), "--reference", str(two), "--isolated")
    assert found.status == 2
    assert "neither has a config.json" in " ".join(found.out.split())


def test_options_that_ask_for_the_comparison_imply_it(run, folders, tmp_path):
    one, _ = folders
    (tmp_path / "build.py").write_text(
        "import torch\n\n\ndef model():\n    found = torch.nn.Module()\n"
        "    found.a = torch.nn.Linear(4, 3, bias=False)\n"
        "    found.a.weight.data[:] = torch.arange(12.0).reshape(3, 4)\n    return found\n"
    )
    target = f"{tmp_path / 'build.py'}:model"
    reports = tmp_path / "reports"
    found = run("lint", target, "--checkpoint", str(one), "--isolated", "--weight-report", str(reports))
    assert found.status == 0, found.out
    assert (reports / "summary.json").is_file()
    full = run("lint", target, "--checkpoint", str(one), "--isolated", "--select", "V002", "--replicas", "full")
    assert full.status == 0, full.out
    without = run("lint", target, "--isolated", "--weight-report", str(reports))
    assert without.status == 2
    assert "--weight-report is about comparing weights" in without.err


def test_wrong_uses_are_refused(run, folders):
    one, _ = folders
    for arguments, text in (
        (("--sample", "0"), "0"),
        (("--sample", "0.5"), "--sample is about comparing weights"),
        (("--max-memory", "lots"), "such as 512M"),
        (("--replicas", "none"), "'digest', 'full'"),
    ):
        wrong = run("lint", str(one), "--isolated", *arguments)
        assert wrong.status == 2
        assert text in wrong.err


@pytest.mark.parametrize(("text", "size"), [("512M", 512 << 20), ("2GiB", 2 << 30), ("7", 7), ("1kb", 1024)])
def test_sizes(text, size):
    assert SizeType().convert(text, None, None) == size


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_progress_line_is_one_line_and_wiped():
    times = iter([0.0, 1.0, 1.05, 10.0])
    terminal = Terminal()
    line = ProgressLine(terminal, lambda: next(times))
    line.show(10**9, 10**10, "weights")
    line.show(2 * 10**9, 10**10, "weights")
    line.show(10**10, 10**10, "weights")
    line.wipe()
    shown = terminal.getvalue().split("\r")
    assert shown[1] == "weights  10 %  1.0 GB/s  0:09 left"
    assert shown[2].startswith("weights  100 %  1.0 GB/s  0:00 left")
    assert shown[-1] == ""
    with shown_progress(LiveTarget(), io.StringIO()) as live:
        assert live == LiveTarget()
    with shown_progress(LiveTarget(), terminal) as live:
        assert live is not None
        assert live.progress is not None


def test_a_first_signal_is_a_wish_and_a_later_one_an_order(monkeypatch):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    now = [100.0]
    monkeypatch.setattr("shardlint.cli.interrupts.time.monotonic", lambda: now[0])
    with Interruption() as interruption:
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        interruption.watch()
        interruption.watch()
        assert not interruption.asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.asked()
        os.kill(os.getpid(), signal.SIGINT)  # what a launcher passes on
        assert interruption.received == signal.SIGTERM
        now[0] += 5.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


SLOW = """
import time
from pathlib import Path
import torch
from shardlint.weights.compare import threads

look = threads.check_tile


def slow(*args, **settings):
    Path("reading").touch()
    time.sleep(0.2)
    return look(*args, **settings)


threads.check_tile = slow


def model():
    return torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2000)])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_a_report_that_says_so(tmp_path, number):
    (tmp_path / "slow.py").write_text(SLOW)
    tensors = {
        f"{at}.{name}": torch.zeros((2, 2) if name == "weight" else 2)
        for at in range(2000)
        for name in ("weight", "bias")
    }
    save_file(tensors, tmp_path / "model.safetensors")
    command = [sys.executable, "-m", "shardlint", "lint", "slow.py:model", "--checkpoint", "model.safetensors"]
    command += ["--isolated", "--select", "V002", "--weight-report", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not (tmp_path / "reading").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "the run was interrupted" in " ".join(out.split())
    assert out.rstrip().endswith("BLOCKED")
    assert "Traceback" not in err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "rank_00000.json",
        "summary.json",
        "tensors.csv",
        "worst.txt",
    ]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["incomplete"], summary["verdict"] != "PASS") == ("the run was interrupted", True)


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_weight_report_that_cannot_be_written_is_told_in_one_line_before_the_work(run, folders, tmp_path, folder):
    one, two = folders
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "report_build.py").write_text("def model():\n    raise SystemExit('it was built')\n")
    for target in ((str(one), "--reference", str(two)), ("report_build.py:model", "--checkpoint", str(one))):
        told = run("lint", *target, "--isolated", "--weight-report", str(tmp_path / folder))
        assert told.status == 2
        (line,) = (told.out + told.err).strip().splitlines()
        assert "--weight-report" in line
        assert "expected a folder to write to" in line


def test_the_home_folder_is_expanded_in_what_an_option_names(run, folders, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    options = ("--isolated", "--select", "V002", "--weight-report", "~/wr", "--output-format", "json:~/report.json")
    assert run("lint", "~/one", "--reference", "~/two", *options).status == 0
    assert (tmp_path / "wr" / "summary.json").is_file()
    assert (tmp_path / "report.json").is_file()
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("fraction", ["nan", "0", "-1", "1.5"])
def test_a_sample_that_is_no_fraction_is_refused(run, folders, fraction):
    one, two = folders
    told = run("lint", str(one), "--reference", str(two), "--isolated", "--sample", fraction)
    assert told.status == 2
