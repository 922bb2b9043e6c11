"""Hostile and clumsy input from the command line: never a traceback, a hang, or a green that nothing stands behind."""

import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from shardlint.checkpoint.files import MAX_LISTED, listed
from shardlint.checkpoint.inert_pickle import StreamError, read_stream
from shardlint.checkpoint.optimizer_state import stored_optimizers
from shardlint.names import csv_cell
from shardlint.report.json import encode
from shardlint.weights.storage.stored_tensors import Files, ReadError, TensorSource

BUILDERS = """
import asyncio, os, sys, threading
class Odd(BaseException):
    def __str__(self): raise RuntimeError("no text")
def cancelled(): raise asyncio.CancelledError
def generator_exit(): raise GeneratorExit
def odd(): raise Odd
"""


def stored(folder, header, body=b""):
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + body)
    return folder


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","shape":[2, -0],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[-0,0]}}',
        b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0, -0]}}',
    ],
)
def test_minus_zero_is_no_size(run, tmp_path, header):
    assert run("lint", stored(tmp_path / "c", header)).status == 1


@pytest.mark.parametrize("name", ["x-0", ",-0", "[-0"])
def test_minus_zero_in_a_name_is_none(run, tmp_path, name):
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    assert run("lint", stored(tmp_path / "c", header, bytes(4))).status == 0


@pytest.mark.parametrize("value", [True, 5, 1.5, "LlamaForCausalLM", {"a": 1}, [1, None], [[]], None])
@pytest.mark.parametrize("key", ["architectures", "model_type", "quantization_config", "text_config"])
def test_raw_values_of_a_configuration_crash_nothing(run, tmp_path, key, value):
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({key: value}))
    shown = run("lint", tmp_path)
    assert "internal error" not in shown.err
    assert "crashed" not in shown.out


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_a_name_without_characters_is_shown_in_quotes(run, tmp_path, name):
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    index = {"weight_map": {"weight": "model.safetensors", name: "model.safetensors"}}
    (tmp_path / "model.safetensors").rename(tmp_path / "part.safetensors")
    text = json.dumps(index).replace("model.", "part.")
    (tmp_path / "model.safetensors.index.json").write_text(text)
    shown = run("lint", tmp_path)
    assert shown.status == 1
    assert "D506" in shown.out


@pytest.mark.parametrize("name", ["cancelled", "generator_exit", "odd"])
def test_whatever_a_builder_raises_is_a_finding(run, tmp_path, name):
    (tmp_path / "builders.py").write_text(BUILDERS)
    shown = run("lint", f"builders.py:{name}")
    assert "D201" in shown.out
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    "arguments",
    [("/dev/zero",), ("~nobodyx/foo",), ("c", "--sample", "nan"), ("c", "--checkpoint", "c"), ("f.safetensors",)],
)
def test_what_cannot_be_used_is_2_without_an_internal_error(run, tmp_path, arguments):
    stored(tmp_path / "c", b"{}")
    os.mkfifo(tmp_path / "f.safetensors")
    shown = run("lint", *arguments)
    assert shown.status == 2
    assert "internal error" not in shown.err


def test_two_reports_to_standard_output_are_one_too_many(run, clean):
    shown = run("lint", clean, "--output-format", "text", "--output-format", "json:/dev/stdout")
    assert (shown.status, "both go to standard output" in shown.err) == (2, True)


def test_many_other_files_hide_no_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("shardlint.checkpoint.files.MAX_LISTED", 3)
    for number in range(50):
        (tmp_path / f"{number}.txt").touch()
    for number in range(3):
        (tmp_path / f"z{number}.safetensors").touch()
    names, problems = listed(tmp_path)
    assert {name for name in names if name.startswith("z")} == {"z0.safetensors", "z1.safetensors", "z2.safetensors"}
    assert not problems
    (tmp_path / "z3.safetensors").touch()
    assert "1 more files of weights" in listed(tmp_path)[1][0].detail
    assert MAX_LISTED == 20_000


def test_copies_of_one_list_are_counted(monkeypatch):
    monkeypatch.setattr("shardlint.checkpoint.inert_pickle.MAX_COPIED", 1000)
    stream = b"\x80\x02]q\x00(" + b"N" * 100 + b"e0(" + b"Nh\x00R" * 11 + b"l."
    with pytest.raises(StreamError, match="copies more"):
        read_stream(stream)


@pytest.mark.parametrize("change", ["in place", "replaced", "deleted", "pipe"])
def test_a_file_that_changes_while_it_is_compared_is_an_error(tmp_path, change):
    path = tmp_path / "a"
    path.write_bytes(bytes(8))
    source = TensorSource(key="a", shape=(2,), dtype=torch.float32, path=path, begin=0)

    def compared():
        with Files() as files:
            files.read_into(source, memoryview(bytearray(8)), 0)
            if change == "in place":
                path.write_bytes(b"1" * 8)
                os.utime(path, ns=(1, 1))
            else:
                path.unlink()
            if change == "replaced":
                path.write_bytes(bytes(8))
            if change == "pipe":
                os.mkfifo(path)

    with pytest.raises(ReadError, match="changed while it was compared"):
        compared()


def test_cells_and_documents_hold_nothing_that_acts():
    assert [csv_cell(text) for text in ("=1+1", "@a", "-x", "a\x1b", "-1.5", 3)] == [
        "'=1+1", "'@a", "'-x", "a\\x1b", "-1.5", 3,
    ]  # fmt: skip
    assert encode({"a": "\u202e\x9b\u2028"}).isascii()


def test_facts_that_refer_to_nothing_name_the_field_and_blame_no_pack(run, tmp_path):
    parameters = [{"fqn": "a", "owner": "a", "layout": -1, "identity": 0}]
    (tmp_path / "facts.json").write_text(json.dumps({"version": 1, "sharding": {"parameters": parameters}}))
    shown = run("lint", "facts.json")
    assert (shown.status, "sharding.parameters[0].layout" in shown.err) == (2, True)
    assert "SL001" not in shown.out


def test_findings_beyond_the_limit_are_counted_and_the_others_kept(run, tmp_path, monkeypatch):
    monkeypatch.setattr("shardlint.engine.judging.FINDING_LIMIT", 5)
    save_file({"a": torch.zeros(1)}, tmp_path / "part.safetensors")
    keys = dict.fromkeys(["a", *(f"wrong{number}" for number in range(12))], "part.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": keys}))
    shown = run("lint", tmp_path, "--select", "D5", "-v")
    assert shown.status == 1
    assert "crashed" not in shown.out
    assert "SL001" not in shown.out
    assert "the first 5 findings are listed, and 7 more were found" in " ".join(shown.out.split())


def test_an_error_in_the_coverage_costs_no_finding(run, tmp_path, monkeypatch):
    def broken(facts):
        raise TypeError("a value of another kind")

    monkeypatch.setattr("shardlint.analysis.coverage.coverage_of", broken)
    shown = run("lint", stored(tmp_path / "c", b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', bytes(4)))
    assert shown.status == 2
    assert "internal error" not in shown.err
    assert "header-corrupt" in shown.out
    assert "the coverage of the checkpoint could not be told: TypeError: a value of another kind" in " ".join(
        shown.out.split()
    )


def test_folders_that_are_not_looked_into_leave_a_mark(tmp_path, monkeypatch):
    monkeypatch.setattr("shardlint.checkpoint.optimizer_state.MAX_FOLDERS", 2)
    for name in "ab":
        (tmp_path / name).mkdir()
    assert stored_optimizers(tmp_path) == ()
    (tmp_path / "c").mkdir()
    (mark,) = stored_optimizers(tmp_path)
    assert mark.problem.startswith("1 more folder than the 2")


def test_a_concise_report_names_the_settings(run, clean, tmp_path):
    (tmp_path / "mine.yaml").write_text("lint: {ignore: [D501]}")
    shown = run("lint", clean, "--config", "mine.yaml", "--output-format", "concise")
    assert "settings: mine.yaml: 1 rule switched off" in shown.out


LATE = """
import os, sys, threading, time, signal
def hang():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
def prints():
    os.write(1, b"noise"); sys.__stdout__.write("noise"); os.system("echo noise")
    import torch
    return torch.nn.Linear(2, 2)
def thread():
    threading.Thread(target=time.sleep, args=(600,)).start()
    return prints()
class Mute(Exception):
    def __str__(self): raise RuntimeError("no text")
def mute(): raise Mute
"""


def started(folder, *arguments):
    """The command in a process of its own, ended after two minutes."""
    command = [sys.executable, "-W", "ignore", "-m", "shardlint", "lint", "--isolated", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_sigterm_before_the_heavy_phase_is_130(tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    shown = started(tmp_path, "late.py:hang")
    assert (shown.returncode, shown.stderr.splitlines()[-1]) == (130, "interrupted")


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["prints", "thread"])
def test_builders_leave_standard_output_and_the_exit_alone(tmp_path, builder):
    (tmp_path / "late.py").write_text(LATE)
    shown = started(tmp_path, f"late.py:{builder}", "--output-format", "json")
    assert json.loads(shown.stdout)["target"]
    assert shown.returncode == 0
    assert "noise" in shown.stderr


def test_a_builder_whose_error_has_no_text_is_a_finding(run, tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    shown = run("lint", "late.py:mute")
    assert "D201" in shown.out
    assert "internal error" not in shown.err


def dcp_of_big_integers():
    return pickle.dumps({"state": {0: {"step": 10**5000}}, "param_groups": [{"params": [10**5000]}]})


def test_integers_of_thousands_of_digits_are_read(tmp_path):
    path = tmp_path / "optimizer.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("optimizer/data.pkl", dcp_of_big_integers())
    (read,) = stored_optimizers(tmp_path)
    assert read.path == "optimizer.pt"
