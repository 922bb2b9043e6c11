from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardlint.checkpoint.files import MAX_LISTED
from shardlint.checkpoint.folder import CheckpointError, collect_checkpoint
from shardlint.collect.targets import TargetError, resolve
from shardlint.facts import CheckpointFacts
from support.safetensors_files import write_file, write_sharded

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
A, B = {"a": ("F32", [2])}, {"b": ("F32", [3])}


def problems(facts: CheckpointFacts) -> set[tuple[str, str]]:
    return {(problem.file, problem.kind) for problem in facts.problems}


def sharded(folder: Path, **changes: str) -> Path:
    return write_sharded(folder, {FIRST: A, SECOND: B}, **changes)


def test_a_sharded_folder(tmp_path: Path) -> None:
    facts = collect_checkpoint(sharded(tmp_path))
    assert facts.problems == ()
    assert facts.format == "safetensors-sharded"
    assert [(item.key, item.file) for item in facts.entries] == [("a", FIRST), ("b", SECOND)]
    assert facts.index is not None
    assert dict(facts.index.weight_map) == {"a": FIRST, "b": SECOND}


def test_a_single_file_wins_over_an_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    write_file(tmp_path / "model.safetensors", {"c": ("F32", [1])})
    facts = collect_checkpoint(tmp_path)
    assert [item.key for item in facts.entries] == ["c"]
    assert [item.key for item in facts.extra_entries] == ["a", "b"]


def test_the_config_may_name_the_weights(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", A)
    write_file(tmp_path / "mine.safetensors", B)
    (tmp_path / "config.json").write_text('{"transformers_weights": "mine.safetensors"}')
    assert [item.key for item in collect_checkpoint(tmp_path).entries] == ["b"]


def test_a_config_cannot_name_weights_elsewhere(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", A)
    write_file(tmp_path / "inner" / "model.safetensors", A)
    (tmp_path / "inner" / "config.json").write_text('{"transformers_weights": "../model.safetensors"}')
    facts = collect_checkpoint(tmp_path / "inner")
    assert ("../model.safetensors", "escapes-folder") in problems(facts)
    assert facts.entries == ()


def test_a_variant(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", A)
    write_file(tmp_path / "model.fp16.safetensors", B)
    assert [item.key for item in collect_checkpoint(tmp_path, variant="fp16").entries] == ["b"]
    with pytest.raises(CheckpointError, match="no weights"):
        collect_checkpoint(tmp_path, variant="bf16")


def test_one_file_and_one_index_by_name(tmp_path: Path) -> None:
    sharded(tmp_path)
    assert len(collect_checkpoint(tmp_path / FIRST).entries) == 1
    assert len(collect_checkpoint(tmp_path / "model.safetensors.index.json").entries) == 2


def test_shards_without_an_index_all_count_and_gaps_are_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert len(collect_checkpoint(tmp_path).entries) == 2
    (tmp_path / FIRST).unlink()
    assert problems(collect_checkpoint(tmp_path)) == {(FIRST, "missing")}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        ("not json", "index-json"),
        ("{" * 100_000, "index-json"),
        ('{"weight_map": [1]}', "index-schema"),
        ('{"weight_map": {"a": 1}}', "index-schema"),
        ('{"metadata": {}}', "index-schema"),
        ('{"weight_map": {"a": "x.exe"}}', "index-schema"),
        ("[]", "index-schema"),
        (LFS, "lfs-pointer"),
    ],
)
def test_an_index_that_cannot_be_used(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    facts = collect_checkpoint(tmp_path)
    assert ("model.safetensors.index.json", kind) in problems(facts)
    assert facts.entries == ()


@pytest.mark.parametrize(
    "name",
    [
        "../out.safetensors",
        "/etc/out.safetensors",
        "a/../../out.safetensors",
        "a\\..\\out.safetensors",
        "\0.safetensors",
        "",
    ],
)
def test_an_index_entry_that_leaves_the_folder(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / "out.safetensors", A)
    facts = collect_checkpoint(sharded(tmp_path / "inner", a=name))
    assert (name, "escapes-folder") in problems(facts)
    assert {item.file for item in facts.entries} == {SECOND}


def test_missing_and_pointer_shards(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / FIRST).unlink()
    (tmp_path / SECOND).write_text(LFS)
    facts = collect_checkpoint(tmp_path)
    assert problems(facts) == {(FIRST, "missing"), (SECOND, "lfs-pointer")}
    assert {file.name: file.kind for file in facts.files if file.counts} == {SECOND: "lfs-pointer"}


def test_links(tmp_path: Path) -> None:
    outside = write_file(tmp_path / "outside.safetensors", A)
    folder = tmp_path / "folder"
    inner = write_file(folder / "deep" / "inner.safetensors", A)
    for name, target in {
        "in": inner,
        "out": outside,
        "self": folder / "self.safetensors",
        "gone": folder / "no",
    }.items():
        (folder / f"{name}.safetensors").symlink_to(target)
    facts = collect_checkpoint(folder)
    assert problems(facts) == {
        ("out.safetensors", "escapes-folder"),
        ("self.safetensors", "unreadable"),
        ("gone.safetensors", "missing"),
    }
    assert {item.file for item in facts.entries} == {"in.safetensors"}


def cache(tmp_path: Path) -> Path:
    blob = write_file(tmp_path / "models--a--b" / "blobs" / "0123", A)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(Path("../../blobs") / blob.name)
    return snapshot


def test_a_hugging_face_cache(tmp_path: Path) -> None:
    snapshot = cache(tmp_path)
    assert collect_checkpoint(snapshot).problems == ()
    with pytest.raises(CheckpointError, match="name one of its snapshots"):
        collect_checkpoint(snapshot.parent.parent)


def test_a_link_that_leaves_the_cache(tmp_path: Path) -> None:
    snapshot = cache(tmp_path)
    (snapshot / "extra.safetensors").symlink_to(write_file(tmp_path / "evil.safetensors", A))
    assert problems(collect_checkpoint(snapshot)) == {("extra.safetensors", "escapes-folder")}


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (["pytorch_model.bin"], "pickle"),
        (["x.gguf"], "gguf"),
        ([".metadata", "__0_0.distcp"], "dcp"),
        (["adapter_model.bin"], "adapter"),
    ],
)
def test_other_formats_are_recognised_and_not_opened(tmp_path: Path, names: list[str], form: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    facts = collect_checkpoint(tmp_path)
    assert (facts.format, facts.entries) == (form, ())
    told = [(problem.file, problem.kind) for problem in facts.problems]  # of DCP the metadata is read, as inert data
    assert told == ([(".metadata", "metadata-schema")] if form == "dcp" else [])
    assert not any(file.opened for file in facts.files)


def test_trainer_state_is_no_checkpoint(tmp_path: Path) -> None:
    for name in ("optimizer.pt", "training_args.bin", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"(?s)no weights.*Looked for.*Found: .*notes\.txt"):
        collect_checkpoint(tmp_path)


def test_no_such_path(tmp_path: Path) -> None:
    for path in (tmp_path / "no", Path("\0")):
        with pytest.raises(CheckpointError):
            collect_checkpoint(path)


@pytest.mark.parametrize("text", ["{", "[1]", "", "[" * 5000, '{"a": ' * 900 + "1" + "}" * 900, LFS])
def test_a_bad_config_is_a_problem(tmp_path: Path, text: str) -> None:
    write_file(tmp_path / "model.safetensors", A)
    (tmp_path / "config.json").write_text(text)
    facts = collect_checkpoint(tmp_path)
    assert facts.config is None
    assert [problem.file for problem in facts.problems] == ["config.json"]


def test_the_generation_config_is_read_beside_the_weights(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", A)
    assert collect_checkpoint(tmp_path).generation_config is None
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    facts = collect_checkpoint(tmp_path)
    assert facts.generation_config == {"eos_token_id": (1, 2)}
    assert not facts.problems


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_what_is_no_json_is_said_once(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / "model.safetensors", A)
    (tmp_path / name).write_text("{")
    (problem,) = collect_checkpoint(tmp_path).problems
    assert (problem.file, problem.kind) == (name, "config-json")
    assert "no JSON" not in problem.detail  # the rule says so before it


def test_a_config_is_kept_as_plain_values(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", A)
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "big": 1e999, "n": 123456789012345678901, "s": "\\ud800"}'
    )
    facts = collect_checkpoint(tmp_path)
    assert facts.config is not None
    assert facts.config["model_type"] == "llama"
    json.dumps(facts.config["s"]).encode()


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "model.safetensors", A)

    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.pread", refuse)
    assert problems(collect_checkpoint(tmp_path)) == {("model.safetensors", "unreadable")}


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    path = write_file(tmp_path / "model.safetensors", A)
    real = os.pread

    def read_and_grow(descriptor: int, count: int, offset: int) -> bytes:
        with path.open("ab") as stream:
            stream.write(b"x")
        return real(descriptor, count, offset)

    monkeypatch.setattr("os.pread", read_and_grow)
    assert ("model.safetensors", "changed") in problems(collect_checkpoint(tmp_path))


def test_an_index_of_more_files_than_any_folder_has(tmp_path: Path) -> None:
    weight_map = {f"k{number}": f"f{number}.safetensors" for number in range(MAX_LISTED + 1)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    facts = collect_checkpoint(tmp_path)
    (problem,) = facts.problems
    assert (problem.kind, facts.index) == ("index-schema", None)
    assert f"names {MAX_LISTED + 1} files" in problem.detail


def test_the_top_of_a_cache_and_a_lone_metadata_as_targets(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "abc"
    write_file(snapshot / "model.safetensors", {"a": ("F32", [4])})
    with pytest.raises(TargetError, match=r"Hugging Face cache, name one of its snapshots: .*snapshots/abc"):
        resolve(str(tmp_path))
    (tmp_path / ".metadata").write_bytes(b"x")
    assert resolve(str(tmp_path)).kind == "checkpoint"
