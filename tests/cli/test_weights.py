"""The options of heavy rules on the command line."""

from __future__ import annotations

import io

import pytest
import torch
from safetensors.torch import save_file

from shardlint.cli.weights import ProgressLine, SizeType, shown_progress
from shardlint.live import LiveTarget


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


def test_wrong_uses_are_refused(run, folders):
    one, _ = folders
    for arguments, text in (
        (("--sample", "0"), "0"),
        (("--max-memory", "lots"), "such as 512M"),
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
