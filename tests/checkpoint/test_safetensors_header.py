from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardlint.checkpoint.folder import collect_checkpoint
from shardlint.facts import CheckpointFacts
from support.safetensors_files import entry, header, write_file, write_raw

A = {"a": ("F32", [2, 3])}


def kinds(facts: CheckpointFacts) -> set[str]:
    return {problem.kind for problem in facts.problems}


def read(path: Path) -> CheckpointFacts:
    return collect_checkpoint(path)


def raw_case(tmp_path: Path, text: str | bytes, data: int = 24, length: int | None = None) -> CheckpointFacts:
    raw = text.encode() if isinstance(text, str) else text
    return read(write_raw(tmp_path / "model.safetensors", raw, data, length))


def test_a_right_file_has_no_problems(tmp_path: Path) -> None:
    facts = read(write_file(tmp_path / "x.safetensors", {**A, "empty": ("F32", [0, 4]), "scalar": ("I64", [])}))
    assert facts.problems == ()
    assert [(item.key, item.dtype, item.shape, item.begin, item.end) for item in facts.entries] == [
        ("a", "F32", (2, 3), 0, 24),
        ("empty", "F32", (0, 4), 24, 24),
        ("scalar", "I64", (), 24, 32),
    ]
    (file,) = facts.files
    assert file.opened
    assert file.counts
    assert file.tensors == 3
    assert file.header_bytes + 32 == file.size


def one(**info: object) -> str:
    return json.dumps({"a": {**entry("F32", [2, 3], 0), **info}})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[1, 2]", "header-json"),
        ('{"a": ', "header-json"),
        ("{" + '"a":[' * 100_000, "header-json"),
        ("{" + '"a":{' * 100_000, "header-json"),
        (b'{"a\xff": 1}', "header-json"),
        ('{"a": 1}', "header-schema"),
        ('{"a": {"dtype": "F32"}}', "header-schema"),
        ('{"__metadata__": {"a": 1}}', "header-schema"),
        (one(dtype="F33"), "unknown-dtype"),
        (one(dtype=7), "header-schema"),
        (one(shape=[2, 4]), "shape-size"),
        (one(shape=[-2, -3]), "shape-size"),
        (one(shape=[2**62, 2**62]), "shape-size"),
        (one(shape=[2**62, 2**62, 0]), "shape-size"),
        (one(shape=[10**400]), "shape-size"),
        (one(shape=[7] * 200_000), "shape-size"),
        (one(shape=[2.5, 1]), "header-schema"),
        (one(data_offsets=[24, 0]), "offsets"),
        (one(data_offsets=[-24, 0]), "offsets"),
        (one(data_offsets=[0, 2**63]), "offsets"),
        (one(data_offsets=[0]), "header-schema"),
        (json.dumps({"a": entry("F32", [2, 3], 0), "b": entry("F32", [2, 3], 12)}), "overlap"),
        (json.dumps({"a": entry("F32", [2, 3], 0), "b": entry("F32", [2, 3], 0)}), "overlap"),
        (json.dumps({"a": entry("F32", [2, 2], 0), "b": entry("F32", [1], 20)}), "hole"),
        (json.dumps({"a": entry("F32", [2, 2], 0)}), "trailing-bytes"),
        (json.dumps({"a": entry("F32", [2, 4], 0)}), "truncated"),
    ],
)
def test_a_bad_header_is_named(tmp_path: Path, text: str | bytes, kind: str) -> None:
    assert kind in kinds(raw_case(tmp_path, text))


def double(text: str) -> str:
    return text % (json.dumps(entry("F32", [2, 3], 0)), json.dumps(entry("F32", [2, 3], 0)))


@pytest.mark.parametrize(
    "text",
    [
        double('{"a": %s, "a": %s}'),
        double('{"a": %s, "\\u0061": %s}'),
        double('{"__metadata__": {}, "a": %s, "__metadata__": {}, "b": %s}'),
        double('{"__metadata__": {"x": "1", "x": "2"}, "a": %s, "b": %s}'),
        '{"a": {"dtype": "F16", "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}',
        '{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], "data_off\\u0073ets": [0, 24]}}',
    ],
)
def test_duplicate_keys_are_found_however_spelled(tmp_path: Path, text: str) -> None:
    assert "duplicate-key" in kinds(raw_case(tmp_path, text))


def test_field_names_as_tensor_names_are_no_duplicates(tmp_path: Path) -> None:
    tensors = {"data_offsets": ("F32", [1]), "dtype": ("F32", [1]), "a\\b": ("F32", [1]), 'q"': ("F32", [1])}
    facts = read(write_file(tmp_path / "x.safetensors", tensors, {"shape": "{", "note": '\\"a\\":'}))
    assert facts.problems == ()
    assert [item.key for item in facts.entries] == list(tensors)


@pytest.mark.parametrize(
    ("length", "kind"),
    [(2**64 - 1, "header-length"), (100_000_001, "header-length"), (10_000, "truncated"), (0, "header-length")],
)
def test_the_length_of_the_header_lies(tmp_path: Path, length: int, kind: str) -> None:
    assert kinds(raw_case(tmp_path, header(A)[0], length=length)) == {kind}


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x.safetensors", b"{}", 200_000_000, 150_000_000)
    assert kinds(read(path)) == {"header-too-large"}


@pytest.mark.parametrize(("size", "kind"), [(0, "empty"), (7, "truncated"), (20, "truncated"), (60, "truncated")])
def test_a_file_that_was_cut(tmp_path: Path, size: int, kind: str) -> None:
    path = write_file(tmp_path / "x.safetensors", A)
    with path.open("r+b") as stream:
        stream.truncate(size)
    assert kind in kinds(read(path))


def test_every_cut_of_a_file_is_a_problem(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.safetensors", A)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert read(path).problems, size


def test_many_problems_of_one_kind_are_counted_not_listed(tmp_path: Path) -> None:
    table = {f"t{number}": {"dtype": "NO", "shape": [], "data_offsets": [0, 0]} for number in range(5000)}
    facts = raw_case(tmp_path, json.dumps(table), 0)
    assert len(facts.problems) == 21
    assert facts.problems[-1].detail == "and 4980 more of this kind"


def test_names_with_control_characters_stay_whole_and_details_are_escaped(tmp_path: Path) -> None:
    key = "a\n\x1b[31mred\x00"
    facts = raw_case(tmp_path, json.dumps({key: {**entry("F32", [2, 3], 0), "dtype": "\x1b"}}))
    assert facts.entries[0].key == key
    assert all(problem.detail.isprintable() for problem in facts.problems)


def test_special_files_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "other.safetensors").mkdir()
    facts = read(tmp_path)
    assert {(problem.file, problem.kind) for problem in facts.problems} == {
        ("model.safetensors", "unreadable"),
        ("other.safetensors", "unreadable"),
    }
    assert "a FIFO" in facts.problems[0].detail


def test_reading_headers_needs_no_torch(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", A)
    code = (
        "import sys, pathlib; from shardlint.checkpoint.folder import collect_checkpoint;"
        "facts = collect_checkpoint(pathlib.Path(sys.argv[1]));"
        "print(len(facts.entries), sorted({'torch', 'safetensors', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.strip() == "1 []"
