"""A live model against a folder of torch.distributed.checkpoint."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from shardlint.analysis.contract_globs import exclusions_of
from shardlint.checkpoint.folder import collect_checkpoint
from shardlint.collect.model import model_facts
from shardlint.facts import ContractFacts
from shardlint.introspect.walk import walk
from shardlint.weights import (
    ExportUnknownError,
    RowKind,
    RowStatus,
    WeightsVerdict,
    check_export,
    compare_checkpoints,
    faults,
    verify,
)
from shardlint.weights.compare.bits import bits_of
from shardlint.weights.forward import forward_of_folder
from shardlint.weights.storage.chunked_tensor import Pieced
from shardlint.weights.storage.dcp import read_folder
from support.dcp_folders import saved, stepped
from support.tiny import llama

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model.register_parameter("scale", nn.Parameter(torch.tensor(0.5)))
    model.register_buffer("nothing", torch.zeros(0, 3))
    return model


def boxes(shape: tuple[int, ...], counts: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The offsets and sizes of a grid of chunks, the last of a dimension the smallest, as torch cuts."""
    sides = []
    for size, count in zip(shape, counts, strict=True):
        step = -(-size // count)
        sides.append([(low, min(step, size - low)) for low in range(0, size, step)])
    return [([low for low, _ in cell], [size for _, size in cell]) for cell in itertools.product(*sides)]


def in_chunks(values: dict[str, torch.Tensor], folder: Path, grids: dict[str, tuple[int, ...]], *, turned=()) -> Path:
    """Save with some tensors cut into a grid, as ranks of a job do; the chunks of those in `turned` lie transposed."""
    parts = {name: value for name, value in values.items() if name not in grids}
    cells = {name: boxes(tuple(values[name].shape), grid) for name, grid in grids.items()}
    for name, found in cells.items():
        for number, (offsets, sizes) in enumerate(found):
            part = values[name][tuple(slice(low, low + size) for low, size in zip(offsets, sizes, strict=True))]
            parts[f"{name}!{number}"] = part.t().contiguous().t() if name in turned else part.contiguous()
    saved(parts, folder)
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    for name, found in cells.items():
        described = [metadata.state_dict_metadata.pop(f"{name}!{number}") for number in range(len(found))]
        whole = described[0]
        whole.size = values[name].shape
        whole.chunks = [ChunkStorageMetadata(torch.Size(low), torch.Size(size)) for low, size in found]
        metadata.state_dict_metadata[name] = whole
        for number, chunk in enumerate(whole.chunks):
            (old,) = [index for index in metadata.storage_data if index.fqn == f"{name}!{number}"]
            metadata.storage_data[MetadataIndex(name, chunk.offsets)] = metadata.storage_data.pop(old)
    path.write_bytes(pickle.dumps(metadata))
    return folder


def flip(folder: Path, name: str, at: int) -> None:
    """Flip one bit of the element at a flat position of a stored tensor, in its file."""
    source = read_folder(folder).tensors[name]
    path, begin = source.path, source.begin + at * source.dtype.itemsize
    if isinstance(source, Pieced):
        run = next(run for run in source.runs if run.begin <= at < run.end)
        path, begin = run.source.path, run.source.begin + (run.offset + at - run.begin) * source.dtype.itemsize
    data = bytearray(path.read_bytes())
    data[begin] ^= 1
    path.write_bytes(bytes(data))


def everything_is_covered(result: Any, model: nn.Module) -> None:
    assert (result.verdict, result.errors, faults(result)) == (WeightsVerdict.PASS, (), ())
    live = result.of_kind(RowKind.LIVE)
    assert {row.name for row in live} == set(model.state_dict())
    assert all(row.checked == row.expected for row in live)
    for row in result.of_kind(RowKind.CHECKPOINT):
        assert row.status is RowStatus.EXCLUDED or (row.checked == row.expected and row.sources)


LAYOUTS = {
    "flat": lambda model: model.state_dict(),
    "nested": lambda model: {"model": model.state_dict(), "optim": stepped(model), "step": 3},
    "beside": lambda model: {
        **model.state_dict(),
        "optimizer": stepped(model),
        "lr_scheduler": {"base": torch.ones(2)},
    },
}


@pytest.mark.parametrize("build", [net, llama])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_saved_is_what_is_live(build, layout, tmp_path):
    model = build()
    result = verify(model, saved(LAYOUTS[layout](model), tmp_path))
    everything_is_covered(result, model)
    beside = [row for row in result.of_kind(RowKind.CHECKPOINT) if row.status is RowStatus.EXCLUDED]
    assert {row.reason for row in beside} == (set() if layout == "flat" else {"no part of the model"})
    assert all(row.name.partition(".")[0] in ("optim", "optimizer", "lr_scheduler") for row in beside)


@pytest.mark.parametrize("grid", [(3, 1), (1, 3), (2, 2), (6, 4)])
@pytest.mark.parametrize("turned", [(), ("0.weight",)])
def test_pieces_are_read_as_one_tensor(grid, turned, tmp_path):
    model = net()
    folder = in_chunks(model.state_dict(), tmp_path, {"0.weight": grid, "2.bias": (2,)}, turned=turned)
    result = verify(model, folder)
    everything_is_covered(result, model)
    assert {row.name for row in result.of_kind(RowKind.CHECKPOINT)} == set(model.state_dict())
    compared = compare_checkpoints(folder, saved(model.state_dict(), tmp_path / "whole"))
    assert (compared.verdict, compared.count(RowStatus.EXACT, RowKind.CHECKPOINT)) == (
        WeightsVerdict.PASS,
        len(model.state_dict()),
    )
    with torch.no_grad():
        bits_of(model[0].weight)[4, 1] ^= 1
    (row,) = [row for row in verify(model, folder).of_kind(RowKind.LIVE) if row.load_mismatches]
    assert (row.load_mismatches, row.first.live_index) == (1, (4, 1))
    assert (row.first.checkpoint_key, row.first.checkpoint_index) == ("0.weight", (4, 1))


def test_pieces_of_a_large_tensor(tmp_path):
    """Larger than a buffer, and cut so that neither pieces nor tiles end where the others do."""
    model = nn.Linear(1031, 700, bias=False)
    for number, grid in enumerate(((3, 1), (2, 3))):
        folder = in_chunks(model.state_dict(), tmp_path / str(number), {"weight": grid})
        everything_is_covered(verify(model, folder), model)
    with torch.no_grad():
        bits_of(model.weight)[699, 1030] ^= 1
    (row,) = verify(model, folder).of_kind(RowKind.LIVE)
    assert (row.load_mismatches, row.first.checkpoint_index) == (1, (699, 1030))


@pytest.mark.parametrize("chunked", [False, True])
def test_one_flipped_bit_of_the_file_is_found_at_its_place(chunked, tmp_path):
    model = llama()
    name = "model.layers.0.mlp.down_proj.weight"
    value = model.state_dict()[name]
    in_chunks(model.state_dict(), tmp_path, {name: (2, 1)} if chunked else {})
    flip(tmp_path, name, value.numel() - 3)
    result = verify(model, tmp_path)
    assert result.verdict is WeightsVerdict.FAIL
    (row,) = [row for row in result.of_kind(RowKind.LIVE) if row.status is not RowStatus.EXACT]
    assert (row.name, row.load_mismatches, row.sources) == (name, 1, (name,))
    assert row.first.checkpoint_key == name
    assert row.first.checkpoint_index == row.first.live_index == (value.shape[0] - 1, value.shape[1] - 3)
    assert [fault.what for fault in faults(result)] == ["mismatch"]


def whole_file(folder: Path) -> Path:
    (path,) = folder.glob("*.distcp")
    return path


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [Path.unlink, cut_off, lambda path: path.write_bytes(b"\0" * path.stat().st_size)])
def test_pieces_that_cannot_be_read_are_no_pass(damage, tmp_path):
    model = net()
    in_chunks(model.state_dict(), tmp_path, {"0.weight": (3, 1)})
    damage(whole_file(tmp_path))
    result = verify(model, tmp_path)
    assert result.verdict is WeightsVerdict.FAIL
    lost = [row for row in result.rows if row.status is RowStatus.INCOMPLETE]
    assert {RowKind.LIVE, RowKind.CHECKPOINT} == {row.kind for row in lost}
    assert all(".distcp" in row.reason for row in lost)
    assert not any(row.load_mismatches for row in result.rows)


def test_values_that_do_not_lie_where_the_archive_says(tmp_path):
    """The header in front of the values claims more bytes before them than the piece has."""
    model = net()
    path = whole_file(saved(model.state_dict(), tmp_path))
    data = bytearray(path.read_bytes())
    headers = [at for at in range(len(data)) if data[at : at + 4] == b"PK\x03\x04" and b"data/0" in data[at : at + 60]]
    data[headers[0] + 28 : headers[0] + 30] = b"\xff\xff"
    path.write_bytes(bytes(data))
    result = verify(model, tmp_path)
    (row,) = [row for row in result.of_kind(RowKind.LIVE) if row.status is not RowStatus.EXACT]
    assert (result.verdict, result.errors, row.status) == (WeightsVerdict.FAIL, (), RowStatus.INCOMPLETE)
    assert "do not lie where the archive says" in row.reason


def described(folder: Path, change: Any) -> Path:
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))
    return folder


def without_a_chunk(metadata: Any) -> None:
    del metadata.state_dict_metadata["0.weight"].chunks[1]


def twice_the_same_place(metadata: Any) -> None:
    metadata.state_dict_metadata["0.weight"].chunks[1] = ChunkStorageMetadata(torch.Size([1, 0]), torch.Size([2, 4]))


def compressed(metadata: Any) -> None:
    for index, place in metadata.storage_data.items():
        if index.fqn == "0.weight":
            object.__setattr__(place, "transform_descriptors", ["zstd"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [(without_a_chunk, "16 of 24"), (twice_the_same_place, "share elements"), (compressed, "transformation")],
)
def test_one_tensor_that_is_refused_is_incomplete_with_its_reason(change, reason, tmp_path):
    model = net()
    in_chunks(model.state_dict(), tmp_path, {"0.weight": (3, 1)})
    result = verify(model, described(tmp_path, change))
    assert result.verdict is WeightsVerdict.FAIL
    lost = {(row.kind, row.name): row.reason for row in result.rows if row.status is RowStatus.INCOMPLETE}
    assert set(lost) == {(RowKind.LIVE, "0.weight"), (RowKind.CHECKPOINT, "0.weight")}
    assert all(reason in text for text in lost.values())


def test_what_the_load_casts_is_told_apart(tmp_path):
    model = net()
    values = {name: value.double() / 3 for name, value in model.state_dict().items() if value.is_floating_point()}
    in_chunks({**model.state_dict(), **values}, tmp_path, {"0.weight": (2, 1), "2.weight": (1, 2)})
    model.load_state_dict({**model.state_dict(), **{name: value.float() for name, value in values.items()}})
    result = verify(model, tmp_path)
    assert result.verdict is WeightsVerdict.PASS
    cast = {row.name for row in result.of_kind(RowKind.LIVE) if row.status is RowStatus.DTYPE_CAST}
    assert {"0.weight", "2.weight"} <= cast <= set(values)


def test_refused_state_beside_the_model_is_left_out(tmp_path):
    model = net()
    state = {"model": model.state_dict(), "optim": {"phase": torch.ones(2, dtype=torch.complex64)}}
    result = verify(model, saved(state, tmp_path))
    assert result.verdict is WeightsVerdict.PASS
    (row,) = [row for row in result.of_kind(RowKind.CHECKPOINT) if row.name.startswith("optim")]
    assert row.status is RowStatus.EXCLUDED
    assert row.reason.startswith("no part of the model; ")


def test_renames_exclusions_and_leftovers(tmp_path):
    model = net()
    state = {f"old.{name}": value for name, value in model.state_dict().items()}
    saved({"model": {**state, "old.extra": torch.ones(3)}}, tmp_path)
    renames = ((r"^model\.old\.", "model."),)
    result = verify(model, tmp_path, renames=renames)
    assert [(fault.what, fault.subject) for fault in faults(result)] == [("unread", "model.old.extra")]
    contract = ContractFacts(source="test", inference_only_sources=("**.extra",))
    assert verify(model, tmp_path, renames=renames, contract=contract).verdict is WeightsVerdict.PASS
    facts, stored = model_facts(walk(model)), collect_checkpoint(tmp_path)
    followed = forward_of_folder(model, facts, stored, renames=renames, exclusions=exclusions_of(contract))
    assert [item.reason for item in followed.plan.leftovers] == ["excluded"]
    assert verify(model, tmp_path).verdict is WeightsVerdict.FAIL


def test_the_way_back_to_such_a_folder_is_not_judged(tmp_path):
    model = llama()
    with pytest.raises(ExportUnknownError, match="found the format dcp"):
        check_export(model, saved(model.state_dict(), tmp_path))
