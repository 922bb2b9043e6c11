"""Folders of torch.distributed.checkpoint: read without executing anything, planned, and judged."""

from __future__ import annotations

import itertools
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from shardlint import Report, lint
from shardlint.checkpoint.chunks import Budget, Chunk, chunk_faults
from shardlint.checkpoint.dcp import read_dcp
from shardlint.checkpoint.dcp_metadata import METADATA
from shardlint.config import Settings
from support.dcp_folders import saved, stepped
from support.tiny import llama


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model.register_parameter("scale", nn.Parameter(torch.ones(())))
    return model


def edited(folder: Path, change: Callable[[Any], None]) -> Path:
    """The folder after `change` of torch's own metadata object."""
    path = folder / METADATA
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))
    return folder


def found(report: Report) -> list[tuple[str, str]]:
    return [(item.code, item.subject) for item in report.findings if item.code.startswith(("D5", "SL"))]


LAYOUTS: dict[str, Callable[[nn.Module], dict[str, Any]]] = {
    "flat": lambda model: model.state_dict(),
    "nested": lambda model: {
        "model": model.state_dict(),
        "optimizer": stepped(model),
        "step": 3,
        "lr": torch.tensor(1.0),
    },
    "app": lambda model: {"app": {"model": model.state_dict(), "optim": stepped(model)}},
    "beside": lambda model: {
        **model.state_dict(),
        "optimizer": stepped(model),
        "train_state": {"step": torch.tensor(3)},
        "lr_scheduler": {"base": torch.ones(2)},
    },
    "averaged": lambda model: {"model": model.state_dict(), "averaged_copy": model.state_dict()},
}


@pytest.mark.parametrize("build", [net, llama])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_dcp_saves_fills_the_model_in_every_layout(build: Any, layout: str, tmp_path: Path) -> None:
    model = build()
    folder = saved(LAYOUTS[layout](model), tmp_path)
    report = lint(model, checkpoint=folder)
    assert found(report) == []
    assert report.coverage is not None
    assert (report.coverage["status"], report.coverage["basis"]) == ("COMPLETE", "plan")
    targets = report.coverage["counts"]["targets"]
    assert targets == {"direct_load" if layout in ("flat", "beside") else "same_shape_rename": len(model.state_dict())}
    assert set(report.coverage["counts"]["sources"]) <= {"other_state"}
    assert bool(report.coverage["counts"]["sources"]) is (layout != "flat")
    alone = lint(checkpoint=folder)
    assert found(alone) == []
    assert alone.coverage is not None
    assert "config.json" in alone.coverage["reason"]


def test_a_folder_with_a_configuration_is_planned_alone(tmp_path: Path) -> None:
    model = llama()
    folder = saved({"model": model.state_dict()}, tmp_path)
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    report = lint(checkpoint=folder)
    assert report.coverage is not None
    assert report.coverage["status"] == "COMPLETE"

    def drop(metadata: Any) -> None:
        del metadata.state_dict_metadata["model.model.norm.weight"]

    assert found(lint(checkpoint=edited(folder, drop))) == [("D501", "model.norm.weight")]


@pytest.mark.parametrize("layout", ["flat", "nested", "app", "beside"])
def test_missing_extra_and_misshapen_tensors_are_named(layout: str, tmp_path: Path) -> None:
    model = net()
    prefix = {"nested": "model.", "app": "app.model."}.get(layout, "")
    folder = saved(LAYOUTS[layout](model), tmp_path)

    def spoil(metadata: Any) -> None:
        described = metadata.state_dict_metadata
        described[f"{prefix}2.weights"] = described.pop(f"{prefix}2.weight")
        metadata.planner_data[f"{prefix}2.weights"] = metadata.planner_data.pop(f"{prefix}2.weight")
        bias = described[f"{prefix}0.bias"]
        bias.size, bias.chunks = torch.Size([3]), [ChunkStorageMetadata(torch.Size([0]), torch.Size([3]))]
        for index in [index for index in metadata.storage_data if index.fqn == f"{prefix}2.weight"]:
            place = metadata.storage_data.pop(index)
            metadata.storage_data[MetadataIndex(f"{prefix}2.weights", index.offset)] = place

    report = lint(model, checkpoint=edited(folder, spoil))
    assert sorted(found(report)) == [("D501", "2.weight"), ("D501", f"{prefix}2.weights"), ("D504", "0.bias")]


def test_declared_renames_come_first(tmp_path: Path) -> None:
    model = net()
    folder = saved({"model": {f"old.{name}": value for name, value in model.state_dict().items()}}, tmp_path)
    assert "D510" in {code for code, _ in found(lint(model, checkpoint=folder))}
    settings_file = tmp_path / "shardlint.yaml"
    settings_file.write_text("checkpoint:\n  renames: [{from: '^model[.]old[.]', to: model.}]\n")
    assert found(lint(model, checkpoint=folder, config=settings_file)) == []


def test_another_model_in_the_folder_is_said_once(tmp_path: Path) -> None:
    folder = saved({"model": llama().state_dict(), "optimizer": {"state": {"exp_avg": torch.ones(2)}}}, tmp_path)
    (finding,) = [item for item in lint(net(), checkpoint=folder).findings if item.code.startswith("D5")]
    assert finding.code == "D524"
    assert "21 of 21 stored keys have no place" in finding.message


def chunks_of(metadata: Any) -> list[Any]:
    """Store `0.weight`, of 6 by 4, in three chunks of two rows, and return them."""
    described = metadata.state_dict_metadata["0.weight"]
    (index,) = [index for index in metadata.storage_data if index.fqn == "0.weight"]
    place = metadata.storage_data.pop(index)
    described.chunks = [ChunkStorageMetadata(torch.Size([row, 0]), torch.Size([2, 4])) for row in (0, 2, 4)]
    for chunk in described.chunks:
        metadata.storage_data[MetadataIndex("0.weight", chunk.offsets)] = place
    return list(described.chunks)


def in_three(metadata: Any) -> None:
    chunks_of(metadata)
    for step, index in enumerate(index for index in list(metadata.storage_data) if index.fqn == "0.weight"):
        place = metadata.storage_data[index]
        metadata.storage_data[index] = type(place)(place.relative_path, place.offset + 40 * step, 32)


def without_one(metadata: Any) -> None:
    in_three(metadata)
    del metadata.state_dict_metadata["0.weight"].chunks[1]


def unplaced(metadata: Any) -> None:
    in_three(metadata)
    metadata.storage_data = {
        index: place
        for index, place in metadata.storage_data.items()
        if not (index.fqn == "0.weight" and index.offset == torch.Size([2, 0]))
    }


def with_last_chunk(offsets: list[int], sizes: list[int]) -> Callable[[Any], None]:
    """Put another chunk in the place of the last, and say where it lies."""

    def change(metadata: Any) -> None:
        in_three(metadata)
        chunks = metadata.state_dict_metadata["0.weight"].chunks
        place = metadata.storage_data.pop(MetadataIndex("0.weight", chunks[2].offsets))
        chunks[2] = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        metadata.storage_data[MetadataIndex("0.weight", chunks[2].offsets)] = type(place)(
            place.relative_path, place.offset, 64
        )

    return change


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (in_three, None, ""),
        (without_one, "chunk-hole", "its 2 chunks hold 16 of 24 elements of [6, 4]"),
        (unplaced, "chunk-unplaced", "nothing says where its chunk at [2, 0] lies"),
        (
            with_last_chunk([3, 0], [2, 4]),
            "chunk-overlap",
            "the chunks at [2, 0] of [2, 4] and at [3, 0] of [2, 4] share elements",
        ),
        (with_last_chunk([4, 0], [3, 4]), "chunk-bounds", "the chunk at [4, 0] of [3, 4] leaves [6, 4]"),
        (with_last_chunk([4], [2]), "chunk-bounds", "the chunk at [4] of [2] leaves [6, 4]"),
    ],
)
def test_chunks_that_do_not_cover_their_tensor(
    change: Callable[[Any], None], kind: str | None, said: str, tmp_path: Path
) -> None:
    folder = edited(saved(net().state_dict(), tmp_path), change)
    report = lint(net(), checkpoint=folder)
    told = [item for item in report.findings if item.code == "D525"]
    assert [item.evidence["problem"] for item in told] == ([] if kind is None else [kind])
    assert all(said in item.message and item.evidence["tensor"] == "0.weight" for item in told)
    assert [code for code, _ in found(lint(checkpoint=folder)) if code == "D525"] == ["D525"] * len(told)
    assert report.exit_status == (0 if kind is None else 1)


def test_data_files_that_are_absent_short_or_elsewhere(tmp_path: Path) -> None:
    whole = (saved(net().state_dict(), tmp_path) / "__0_0.distcp").read_bytes()
    path = tmp_path / "__0_0.distcp"
    assert "stored objects lie there" in lint(checkpoint=_without(path)).findings[0].message
    path.write_bytes(whole[:-1])
    assert found(lint(net(), checkpoint=tmp_path)) == [("D505", "__0_0.distcp")]
    path.write_bytes(whole)

    def away(metadata: Any) -> None:
        for place in metadata.storage_data.values():
            place.relative_path = "../elsewhere.distcp"

    assert found(lint(net(), checkpoint=edited(tmp_path, away))) == [("D514", "../elsewhere.distcp")]


def _without(path: Path) -> Path:
    path.unlink()
    return path.parent


def test_two_objects_in_the_same_bytes(tmp_path: Path) -> None:
    def collide(metadata: Any) -> None:
        first, second, *_ = metadata.storage_data.values()
        second.offset = first.offset

    report = lint(net(), checkpoint=edited(saved(net().state_dict(), tmp_path), collide))
    assert found(report) == [("D515", "__0_0.distcp")]
    assert "belong to" in report.findings[0].message


class Hostile:
    """What runs a command when it is unpickled by somebody who executes such things."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def shared_tuples(depth: int) -> bytes:
    """A tuple that holds the next one twice, `depth` times: a text of 2**depth characters if one wrote it out."""
    return b"\x80\x04)" + b"\x94" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(depth))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"no pickle at all", "metadata-stream"),
        (pickle.dumps({"state_dict_metadata": {}, "storage_data": {}}), "metadata-schema"),
        (pickle.dumps([1, 2, 3]), "metadata-schema"),
        (pickle.dumps("x" * 1000)[:-3], "metadata-stream"),
        (b"\x80\x04" + b"(" * 100_000 + b".", "metadata-stream"),
        (b"\x80\x04" + b"]" * 200_000 + b".", "metadata-schema"),
        (shared_tuples(60) + b"h<h<\x93.", "metadata-stream"),
        (shared_tuples(60) + b"}h<h<s.", "metadata-stream"),
        (shared_tuples(60) + b".", "metadata-schema"),
        (b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b".", "metadata-schema"),
        (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", "metadata-stream"),
    ],
)
def test_hostile_metadata_is_one_problem(data: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / METADATA).write_bytes(data)
    contents = read_dcp(tmp_path)
    assert [problem.kind for problem in contents.problems] == [kind]
    assert contents.entries == ()
    report = lint(checkpoint=tmp_path)
    assert found(report) == [("D505" if kind == "empty" else "D515", METADATA)]
    assert len(str(report)) < 20_000


def test_nothing_in_the_metadata_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    saved(net().state_dict(), tmp_path)

    def plant(metadata: Any) -> None:
        metadata.state_dict_metadata["x"] = Hostile(mark)
        metadata.planner_data = Hostile(mark)

    path = tmp_path / METADATA
    metadata = pickle.loads(path.read_bytes())
    plant(metadata)
    path.write_bytes(pickle.dumps(metadata))
    assert found(lint(net(), checkpoint=tmp_path)) == [("D515", METADATA)]
    assert not mark.exists()
    pickle.loads(path.read_bytes())
    assert mark.exists()  # it is hostile: whoever executes it runs the command


def test_names_that_would_take_for_ever_to_write_are_refused(tmp_path: Path) -> None:
    saved(net().state_dict(), tmp_path)

    def plant(metadata: Any) -> None:
        value: Any = ()
        for _ in range(60):
            value = (value, value)
        next(iter(metadata.storage_data.values())).relative_path = value

    contents = read_dcp(edited(tmp_path, plant))
    assert [problem.kind for problem in contents.problems] == ["metadata-schema"]  # and not 2**60 characters later


@given(st.randoms(use_true_random=False), st.integers(0, 12))
@settings(max_examples=300, deadline=None)
def test_mutated_metadata_never_raises(
    tmp_path_factory: pytest.TempPathFactory, dice: random.Random, edits: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "dcp-mutations"
    if not folder.exists():
        saved(net().state_dict(), folder)
        (folder / "sound").write_bytes((folder / METADATA).read_bytes())
    data = bytearray((folder / "sound").read_bytes())
    for _ in range(edits):
        data[dice.randrange(len(data))] = dice.randrange(256)
    (folder / METADATA).write_bytes(bytes(data))
    contents = read_dcp(folder)
    if not edits:
        assert contents.problems == ()
    assert len(contents.entries) <= len(net().state_dict()) + 1
    assert contents.entries or contents.problems


def cuts(length: int, at: list[int]) -> list[tuple[int, int]]:
    points = sorted({0, length, *(point % (length + 1) for point in at)})
    return list(zip(points, [end - begin for begin, end in itertools.pairwise(points)], strict=False))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), max_size=3)), max_size=3),
    st.integers(0, 10**6),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_a_partition_covers_and_one_chunk_less_does_not(
    axes: list[tuple[int, list[int]]], number: int, dice: random.Random
) -> None:
    shape = tuple(length for length, _ in axes)
    boxes: list[Chunk] = [Chunk((), ())]
    for length, at in axes:
        boxes = [Chunk((*box.offsets, begin), (*box.sizes, size)) for box in boxes for begin, size in cuts(length, at)]
    dice.shuffle(boxes)
    assert list(chunk_faults(shape, boxes)) == []
    chosen = number % len(boxes)
    assert [kind for kind, _ in chunk_faults(shape, boxes[:chosen] + boxes[chosen + 1 :])] == ["chunk-hole"]
    if shape:
        moved = Chunk(tuple(0 for _ in shape), shape)
        assert [kind for kind, _ in chunk_faults(shape, [*boxes, moved])] == (
            ["chunk-overlap"] if len(boxes) > 1 else []
        )
    assert list(chunk_faults(shape, [*boxes, boxes[chosen]])) == []  # a replica


def test_chunks_without_end_are_refused() -> None:
    stripes = [Chunk((0, column), (400, 1)) for column in range(400)]
    assert list(chunk_faults((400, 400), stripes, Budget(left=0))) == []  # a grid takes no comparisons
    crossed = [Chunk((column % 2, column), (399, 1)) for column in range(400)]
    assert [kind for kind, _ in chunk_faults((400, 400), crossed)] == ["chunk-hole"]
    assert [kind for kind, _ in chunk_faults((400, 400), crossed, Budget(left=10_000))] == ["metadata-schema"]


def test_settings_are_not_needed(tmp_path: Path) -> None:
    folder = saved(net().state_dict(), tmp_path)
    assert found(lint(checkpoint=folder, config=Settings())) == []
