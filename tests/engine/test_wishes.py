"""What was asked for and not done is never a PASS."""

import json

import pytest
import torch
from safetensors.torch import save_file

import shardlint
from shardlint import Verdict


def lint(model=None, **more):
    return shardlint.lint(model or torch.nn.Linear(2, 2), config=False, **more)


def undone(report):
    return [(finding.subject, finding.message) for finding in report.findings if finding.code == "SL009"]


@pytest.mark.parametrize("selector", ["D6", "D60", "phase:D7"])
def test_a_selector_of_which_nothing_ran(selector):
    report = lint(select=[selector, "D401"])
    assert report.verdict is Verdict.BLOCKED
    ((subject, message),) = undone(report)
    assert subject == selector
    assert f"select asks for {selector}" in message


def test_what_was_done_is_no_finding():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = lint(model, optimizer=optimizer, select=["D4", "D6"])
    assert undone(report) == []
    assert report.verdict is Verdict.PASS


def test_a_run_in_which_nothing_was_judged():
    report = lint(ignore=["D1", "D2", "D3", "D4", "D5", "V0"])
    assert report.verdict is Verdict.BLOCKED
    assert undone(report)[0][0] == "run"


def test_heavy_work_without_anything_to_compare():
    report = lint(heavy=True)
    assert report.verdict is Verdict.BLOCKED
    assert [subject for subject, _ in undone(report)] == ["--heavy"]
    assert undone(lint(heavy=False)) == []


def test_heavy_work_that_was_done(tmp_path):
    model = torch.nn.Linear(2, 2)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    report = lint(model, checkpoint=tmp_path, heavy=True)
    assert report.verdict is Verdict.PASS, str(report)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf"])
def test_a_checkpoint_that_nobody_reads(tmp_path, name):
    if name.endswith("bin"):
        torch.save({"weight": torch.zeros(2, 2)}, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(b"GGUF" + bytes(60))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    report = lint(checkpoint=tmp_path)
    assert report.verdict is Verdict.BLOCKED
    assert [subject for subject, _ in undone(report)] == [str(tmp_path)]
