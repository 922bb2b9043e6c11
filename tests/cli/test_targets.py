"""Live targets, checkpoints, snapshots, and everything that a user can get wrong about them."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

BUILDERS = """
import sys
import torch
import shardlint
from shardlint.contract import Contract, Probe

def model(width=4, layers=2, meta=False):
    print("building", file=sys.stdout)
    with torch.device("meta" if meta else "cpu"):
        blocks = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        return torch.nn.ModuleDict({"layers": blocks})

def target():
    info = {"missing_keys": ["layers.1.bias"], "unexpected_keys": []}
    return shardlint.Target(model=model(), checkpoint="ckpt", load_info=info)

def raises():
    raise ValueError("no such size")

def exits():
    sys.exit(3)

def nothing():
    pass

def interrupted():
    raise KeyboardInterrupt

contract = Contract(probes=(Probe(glob="layers.*.scale"),))
number = 3
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with builders and the checkpoint of what they build."""
    (tmp_path / "builders.py").write_text(BUILDERS)
    (tmp_path / "ckpt").mkdir()
    tensors = {
        f"layers.{i}.{name}": torch.zeros((4, 4) if name == "weight" else 4)
        for i in range(2)
        for name in ("weight", "bias")
    }
    save_file(tensors, tmp_path / "ckpt" / "model.safetensors")
    return tmp_path


def outcomes(text):
    return {item["code"]: item["status"] for item in json.loads(text)["outcomes"]}


def test_a_builder_is_called_and_what_it_prints_stays_out_of_the_report(run, folder):
    shown = run("lint", "builders.py:model", "--checkpoint", "ckpt", "--output-format", "json")
    assert shown.status == 0
    document = json.loads(shown.out)
    assert "building" in shown.err
    assert document["metadata"]["model"]["parameters"] == 4
    assert document["metadata"]["checkpoint"]["tensors"] == 4
    assert outcomes(shown.out)["D401"] == "clean"


def test_what_libraries_write_to_the_descriptor_stays_out_of_the_report(folder):
    (folder / "noisy.py").write_text(
        "import os, torch\ndef build():\n    os.write(1, b'NOISE')\n    return torch.nn.Linear(1, 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "shardlint", "lint", "noisy.py:build", "--output-format", "json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["verdict"] == "PASS"
    assert "NOISE" in done.stderr


def test_a_builder_that_changes_the_folder_moves_nothing_of_the_user(run, folder):
    (folder / "away").mkdir()
    (folder / "moving.py").write_text(
        "import os, torch\ndef build():\n    os.chdir('away')\n    return torch.nn.Linear(1, 1)\n"
    )
    shown = run("lint", "moving.py:build", "--checkpoint", "ckpt", "--select", "D5", "--output-format", "json:out.json")
    assert shown.status == 1, shown.err
    assert (folder / "out.json").is_file()
    assert not list((folder / "away").iterdir())


def test_a_checkpoint_of_the_target_is_where_the_builder_left_off(run, folder):
    (folder / "moving.py").write_text(
        "import os, torch, shardlint\ndef build():\n    os.chdir('ckpt')\n"
        "    return shardlint.Target(checkpoint='model.safetensors')\n"
    )
    shown = run("lint", "moving.py:build", "--select", "D5")
    assert "safetensors, 4 tensors" in shown.out


def test_an_async_builder_is_told_what_to_do(run, folder, recwarn):
    (folder / "later.py").write_text("async def build():\n    return None\n")
    shown = run("lint", "later.py:build")
    assert shown.status == 2
    assert "the builder is an async function" in shown.err
    assert not recwarn.list


def test_a_class_of_a_file_is_named_as_in_the_file(run, folder):
    (folder / "own.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    pass\ndef build():\n    return Net(1, 1)\n"
    )
    assert run("snapshot", "own.py:build", "-o", "facts.json").status == 0
    text = (folder / "facts.json").read_text()
    assert '"own.Net"' in text
    assert "_shardlint_file_" not in text
    (folder / "shardlint.yaml").write_text("contract:\n  placeholders: [own.Net]\n")
    assert "own.Net is a placeholder" in run("lint", "own.py:build").out


def test_arguments_reach_the_builder(run, folder):
    shown = run("lint", "builders.py:model", "--arg", "layers=3", "--arg", "meta=true")
    assert shown.status == 1
    assert "layers.{0..2}.weight (3 tensors)" in shown.out


def test_a_target_brings_everything_with_it(run, folder):
    shown = run("lint", "builders.py:target", "--select", "D501")
    assert shown.status == 1
    assert "layers.1.bias" in shown.out
    assert "(by the load report)" in shown.out


def test_a_contract_by_name(run, folder):
    shown = run("lint", "builders.py:model", "--contract", "builders.py:contract", "--select", "V001")
    assert shown.status == 1
    assert "layers.*.scale" in shown.out


def test_a_checkpoint_alone(run, folder):
    shown = run("lint", "ckpt", "--select", "D5")
    assert shown.status == 0
    assert "safetensors, 4 tensors" in shown.out


def test_a_builder_that_raises_is_a_finding_of_its_own(run, folder):
    shown = run("lint", "builders.py:raises")
    assert shown.status == 1
    assert "error D201 model-build-failed" in shown.out
    assert "no such size" in shown.out
    assert "builders.py:" in shown.out
    assert "Traceback" not in shown.err


def test_snapshot_then_lint_gives_the_same_findings(run, folder):
    live = run("lint", "builders.py:target", "--output-format", "json")
    assert run("snapshot", "builders.py:target", "-o", "facts.json").status == 0
    replayed = run("lint", "facts.json", "--output-format", "json")
    first, second = (json.loads(shown.out) for shown in (live, replayed))
    assert first.pop("timing")
    assert second.pop("timing")
    assert first == second
    assert not list(folder.glob(".facts.json*"))


def test_snapshot_through_a_pipe(folder):
    command = f"{sys.executable} -m shardlint snapshot ckpt -o - | {sys.executable} -m shardlint lint - -q"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.endswith("| PASS\n")


def test_facts_are_read_from_whatever_name_snapshot_took(run, folder):
    assert run("snapshot", "ckpt", "-o", "tiny.facts").status == 0
    assert run("lint", "tiny.facts", "-q").out.endswith("| PASS\n")


@pytest.mark.parametrize(("file", "found"), [("nowhere/facts.json", "no folder 'nowhere'"), ("ckpt", "a folder")])
def test_snapshot_to_what_is_no_file_fails_before_the_model_is_built(run, folder, file, found):
    shown = run("snapshot", "builders.py:model", "-o", file)
    assert shown.status == 2
    assert shown.err == f"Error: --output {file}: expected a file to write, found {found}\n"


BAD_TARGETS = {
    "no-such-file": "no such file or folder",
    "no/such/folder": "no such file or folder",
    "builders.py": "name the callable",
    "builders.py:missing": "has no 'missing'",
    "builders.py:modle": "did you mean 'model'?",
    "builders.py:number": "expected a callable",
    "builders.py:nothing": "got None; does the builder return what it built?",
    "nopackage.models:build": "no module named 'nopackage'",
    "empty": "it is empty",
    "docs": "expected a checkpoint folder",
    "half.json": "half.json",
    "future.json": "future.json",
    "nofacts.json": "nofacts.json",
    "ckpt/model.bin": "is not a checkpoint file that can be read",
}


@pytest.mark.parametrize("target", BAD_TARGETS)
def test_a_bad_target_is_one_clear_error(run, folder, target):
    (folder / "empty").mkdir()
    (folder / "docs").mkdir()
    (folder / "docs" / "README.md").write_text("nothing here")
    (folder / "ckpt" / "model.bin").write_bytes(b"\x80\x02.")
    assert run("snapshot", "ckpt", "-o", "facts.json").status == 0
    whole = (folder / "facts.json").read_text()
    (folder / "half.json").write_text(whole[: len(whole) // 2])
    (folder / "future.json").write_text(whole.replace('"version":1', '"version":99', 1))
    (folder / "nofacts.json").write_text('{"a": 1}')
    for command in (("lint", target), ("snapshot", target, "-o", "out.json")):
        shown = run(*command)
        assert (shown.status, shown.out) == (2, "")
        assert BAD_TARGETS[target] in shown.err
        assert shown.err.startswith("Error: ")
        assert "Traceback" not in shown.err
    assert not (folder / "out.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("builders.py:model", "--arg", "layers"), "expected name=value"),
        (("builders.py:model", "--arg", "depth=3"), "unexpected keyword argument 'depth'"),
        (("builders.py:model", "--arg", "layers=1", "--arg", "layers=2"), "given before"),
        (("ckpt", "--arg", "layers=1"), "--arg"),
        (("builders.py:model", "--checkpoint", "nowhere"), "no such file or folder"),
        (("builders.py:model", "--contract", "builders.py:nope"), "nope"),
    ],
)
def test_bad_options_of_a_target(run, folder, arguments, message):
    shown = run("lint", *arguments)
    assert (shown.status, shown.out) == (2, "")
    assert message in shown.err
    assert "Traceback" not in shown.err


def test_tracebacks_on_demand(run, folder):
    assert "Traceback (most recent call last)" in run("lint", "nowhere", "-v").err


def test_an_index_that_is_no_json(run, folder):
    (folder / "ckpt" / "model.safetensors").rename(folder / "ckpt" / "model-00001-of-00001.safetensors")
    (folder / "ckpt" / "model.safetensors.index.json").write_text("{not json")
    shown = run("lint", "ckpt")
    assert shown.status == 1
    assert "D515" in shown.out


def test_interrupting_a_builder_is_130_and_leaves_nothing(run, folder):
    before = set(folder.iterdir())
    shown = run("snapshot", "builders.py:interrupted", "-o", "facts.json")
    assert shown.status == 130
    assert {path for path in folder.iterdir() if path.name != "__pycache__"} == before


SLOW = """
import sys, time

def build():
    print("ready")
    sys.stdout.flush()
    time.sleep(60)
"""


def test_a_real_interrupt_from_the_keyboard(folder):
    (folder / "slow.py").write_text(SLOW)
    with subprocess.Popen(
        [sys.executable, "-m", "shardlint", "snapshot", "slow.py:build", "-o", "facts.json"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().strip() == "interrupted"
    assert process.returncode == 130
    assert not list(folder.glob("*facts.json*"))


def test_a_builder_that_exits_is_a_failed_build(run, folder):
    shown = run("lint", "builders.py:exits")
    assert shown.status == 1
    assert "error D201 model-build-failed" in shown.out


def test_a_checkpoint_is_linted_without_torch(folder):
    code = (
        "import sys; from shardlint.cli.main import main; print(main(['lint', 'ckpt', '-q']), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"


def test_a_local_collector_that_fails_is_told_and_not_trusted(run, folder):
    (folder / "mine.py").write_text(
        "from shardlint import API_VERSION, PackInfo, hookimpl\n"
        "@hookimpl\ndef shardlint_pack():\n    return PackInfo(name='mine', prefix='MINE', api=API_VERSION)\n"
        "class Broken:\n    name = 'broken'\n    section = 'data'\n"
        "    def collect(self, target, walk, facts):\n        raise RuntimeError('no data today')\n"
        "@hookimpl\ndef shardlint_collectors():\n    return [Broken()]\n"
    )
    (folder / "shardlint.yaml").write_text("packs: {local: [mine.py]}\n")
    shown = run("lint", "builders.py:model")
    assert shown.status == 2
    assert "SL002 pack-failed" in shown.out
    assert "no data today" in shown.out


@pytest.mark.timeout(60)
def test_facts_are_read_from_pipes(faulty, tmp_path):
    """Process substitution gives a pipe such as /dev/fd/63, mkfifo a named one; neither can be read twice."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = (
        f'"{sys.executable}" -m shardlint lint -q <(cat "{faulty}"); echo $?; '
        f'cat "{faulty}" > "{pipe}" & "{sys.executable}" -m shardlint lint -q "{pipe}"; echo $?'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["2 errors", "1", "2 errors", "1"], done.stderr


def test_a_contract_of_the_configuration_is_not_used_for_facts_in_silence(run, faulty, tmp_path):
    (tmp_path / "shardlint.yaml").write_text("lint: {heavy: false}\ncontract: {lazy-buffers: ['*']}\n")
    done = run("lint", faulty)
    assert "Warning: shardlint.yaml:2: the contract is not used: contracts are evaluated where facts" in done.err
    (tmp_path / "shardlint.yaml").write_text("lint: {heavy: false}\n")
    assert run("lint", faulty).err == ""
