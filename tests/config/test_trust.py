"""Settings that lie in what is inspected are never the user's."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shardlint import lint
from shardlint.cli.main import main
from shardlint.config import load_settings
from shardlint.config.trust import inspected_folders

HOSTILE = """\
lint: {ignore: [D501], fail-level: never}
packs: {local: [checks.py]}
report: {output-format: [text, 'json:WRITTEN.json']}
contract: {inference-only-sources: ['**'], invariants: [{name: x, checker: 'evilmod:f', phase: materialization}]}
"""
CODE = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\ndef f(model): return True\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's project with `.git`, and in `ckpt` a checkpoint that brings settings and code of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / ".git").mkdir()
    checkpoint(tmp_path / "ckpt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checkpoint(folder, settings="shardlint.yaml"):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": torch.zeros(2, 2), "junk": torch.zeros(1)}, folder / "model.safetensors")
    (folder / settings).write_text(HOSTILE)
    for name in ("checks.py", "evilmod.py", "torch.py", "yaml.py"):
        (folder / name).write_text(CODE)
    return folder


def nothing_happened(root):
    assert not [str(path) for path in root.rglob("*.ran")]
    assert not list(root.rglob("WRITTEN.json"))


@pytest.mark.parametrize("name", ["shardlint.yaml", ".shardlint.yml"])
@pytest.mark.parametrize(
    ("stand", "target"),
    [("ckpt", "."), ("ckpt", "model.safetensors"), ("ckpt/sub", ".."), ("ckpt/sub", "../model.safetensors")],
)
def test_settings_of_the_inspected_folder_are_not_used(project, monkeypatch, capsys, name, stand, target):
    (project / "ckpt" / "shardlint.yaml").rename(project / "ckpt" / name)
    (project / stand).mkdir(exist_ok=True)
    monkeypatch.chdir(project / stand)
    main(["lint", target])
    shown = capsys.readouterr()
    assert f"{name} is not used" in shown.err
    assert "is not used" in " ".join(shown.out.split())
    assert "settings:" not in shown.out
    nothing_happened(project)


def test_the_python_api_does_not_use_them_either(project, monkeypatch):
    monkeypatch.chdir(project / "ckpt")
    report = lint(torch.nn.Linear(2, 2, bias=False), checkpoint=".")
    assert report.metadata["settings"]["files"] == ()
    assert "is inspected" in report.metadata["settings"]["not_used"][0]
    assert any(finding.code == "D501" for finding in report.findings)
    nothing_happened(project)


@pytest.mark.parametrize("command", [["packs"], ["rules"], ["config", "show"], ["suppressions"]])
def test_no_command_runs_code_of_a_folder_that_holds_a_model(project, monkeypatch, command):
    monkeypatch.chdir(project / "ckpt")
    main(command)
    nothing_happened(project)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", json.dumps({"model_type": "llama"})),
        ("config.json", json.dumps({"architectures": ["X"]})),
        ("model.safetensors.index.json", "{}"),
        ("pytorch_model.bin", ""),
        (".metadata", ""),
        ("__0_0.distcp", ""),
        ("x.gguf", ""),
        ("adapter_model.safetensors", ""),
    ],
)
def test_a_folder_that_looks_like_a_checkpoint_is_nobodys_project(project, file, content):
    other = project / "downloaded"
    (other / "deeper").mkdir(parents=True)
    (other / file).write_text(content)
    (other / "deeper" / "shardlint.yaml").write_text("lint: {ignore: [D501]}")
    settings = load_settings(other / "deeper")
    assert settings.file is None
    assert "holds the files of a model" in settings.warnings[0]


def test_a_users_own_settings_above_a_checkpoint_hold(project):
    (project / "shardlint.yaml").write_text("lint: {ignore: [D501]}")
    (project / "config.json").write_text('{"lr": 1}')
    (project / "last.ckpt").touch()
    settings = load_settings(project, inspected=["ckpt", None, "train.py:build"])
    assert settings.file == project / "shardlint.yaml"
    assert not settings.warnings


def test_who_stands_in_what_is_inspected_gets_no_settings_from_above(project, monkeypatch):
    (project / "shardlint.yaml").write_text("lint: {ignore: [D501]}")
    (project / "plain").mkdir()
    monkeypatch.chdir(project / "plain")
    assert load_settings(Path.cwd(), inspected=["."]).file is None
    assert load_settings(Path.cwd()).file == project / "shardlint.yaml"


def test_links_do_not_hide_where_a_file_lies(project, monkeypatch):
    (project / "link").symlink_to(project / "ckpt")
    (project / "settings").mkdir()
    (project / "settings" / "shardlint.yaml").symlink_to(project / "ckpt" / "shardlint.yaml")
    assert load_settings(project / "link", inspected=["ckpt"]).file is None
    assert load_settings(project / "settings", inspected=["ckpt"]).file is None
    assert inspected_folders(["link"]) == ((project / "ckpt").resolve(),)


def test_named_settings_are_used_and_every_report_says_what_they_do(project, capsys):
    (project / "mine.yaml").write_text(
        "lint:\n  ignore: [D501, D502]\n  severity: {D505: info}\n  fail-level: never\n"
        "  suppress: [{rule: [D503, shape-mismatch], subject: '**', reason: x}]\n"
    )
    main(["lint", "ckpt", "--config", "mine.yaml"])
    out = " ".join(capsys.readouterr().out.split())
    assert "settings: mine.yaml: 2 rules switched off, 1 rule lowered, 2 rules suppressed, fail level never" in out
    main(["lint", "ckpt", "--config", "mine.yaml", "--output-format", "json"])
    told = json.loads(capsys.readouterr().out)["metadata"]["settings"]
    assert (told["switched_off"], told["lowered"], told["fail_level"]) == (["D501", "D502"], ["D505"], "never")
