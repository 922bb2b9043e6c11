"""The built-in example."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardlint.cli import demo
from shardlint.cli.main import main
from shardlint.report import Report, Verdict


def test_the_demo_finds_what_it_should_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["demo"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert lines[-1] == "The demo found what it should find."
    verdicts = [line.rpartition(" | ")[2] for line in lines if " rules: " in line]
    assert verdicts == ["PASS", "FAIL"]
    for code, subject in (
        ("D406 tie-not-real", "lm_head.weight"),
        ("D501 coverage-incomplete", "model.layers.1.mlp.up_proj.weight"),
        ("D506 index-header-disagree", "model.layers.0.self_attn.q_proj.weight"),
    ):
        assert lines[lines.index(f"error {code}") + 1] == f"  {subject}"
    assert str(tmp_path) not in shown.out
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_finds_something_else_says_so(monkeypatch, capsys):
    step = demo.Step(title="t", report=Report(verdict=Verdict.PASS), expected=frozenset({"D501"}))
    monkeypatch.setattr(demo, "run_demo", lambda: [step])
    assert main(["demo"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert "expected D501, found nothing" in lines
    assert lines[-1] == "The demo did not find what it should find."


def test_without_transformers_it_says_what_to_install():
    code = (
        "import sys; sys.modules['transformers'] = None\nfrom shardlint.cli.main import main; sys.exit(main(['demo']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: the demo builds a Transformers model")
    assert "pip install 'shardlint[hf]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_fault_of_the_demo_has_a_rule():
    done = subprocess.run(
        [sys.executable, "-m", "shardlint", "rule", *demo.FAULTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("plant", [demo.drop_key, demo.misplace_key])
def test_planting_a_fault_in_a_folder_without_a_checkpoint_fails(plant, tmp_path):
    with pytest.raises(FileNotFoundError):
        plant(Path(tmp_path), "w")
