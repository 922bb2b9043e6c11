"""Checkpoint against checkpoint: any format, any sharding, across the conversions of the model type."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from shardlint.weights import RowKind, RowStatus, WeightsVerdict, compare_checkpoints, faults
from shardlint.weights.checkpoint_boxes import slabs
from shardlint.weights.compare.bits import bits_of
from shardlint.weights.storage.dcp import read_folder
from shardlint.weights.storage.reader import Reader
from shardlint.weights.storage.stored_tensors import Files, ReadError
from shardlint.weights.symbolic.tensor import SymbolicTensor
from support.loaded_models import loaded, mixtral_config, saved

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    from transformers import MixtralForCausalLM

    return saved(tmp_path_factory.mktemp("original"), mixtral_config(), MixtralForCausalLM)


@pytest.fixture
def model(original):
    from transformers import MixtralForCausalLM

    return loaded(original, MixtralForCausalLM)


def wrong(result):
    return {row.name: row for row in result.of_kind(RowKind.LIVE) if row.load_mismatches}


def test_another_sharding_is_the_same_checkpoint(original, tmp_path):
    tensors = load_file(original / "model.safetensors")
    names = sorted(tensors)
    parts = {f"model-0000{k + 1}-of-00003.safetensors": names[k::3] for k in range(3)}
    for file, keys in parts.items():
        save_file({key: tensors[key] for key in keys}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {key: file for file, keys in parts.items() for key in keys}}
    import json

    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    result = compare_checkpoints(tmp_path, original, reports=tmp_path / "out")
    assert result.verdict is WeightsVerdict.PASS
    assert result.count(RowStatus.EXACT) == result.count(RowStatus.EXACT, RowKind.CHECKPOINT) == len(tensors)
    assert (tmp_path / "out" / "summary.json").is_file()
    assert compare_checkpoints(original, original / "model.safetensors").verdict is WeightsVerdict.PASS


def test_a_training_export_under_live_names(original, model, tmp_path):
    """`state_dict()` as DCP saves it: fused experts, other names; the original has one tensor for each expert."""
    dcp.save({"model": model.state_dict(), "step": 3}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    result = compare_checkpoints(tmp_path / "dcp", original)
    assert result.verdict is WeightsVerdict.PASS, result
    assert result.count(RowStatus.EXACT) == 21
    assert {row.name for row in result.of_kind(RowKind.LIVE)} == set(model.state_dict())
    assert compare_checkpoints(original, tmp_path / "dcp").verdict is WeightsVerdict.PASS
    model.model.layers[1].mlp.experts.gate_up_proj.data[3, 40, 2] += 1
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "later", no_dist=True)
    result = compare_checkpoints(tmp_path / "later", original)
    (row,) = wrong(result).values()
    assert row.first is not None
    assert row.first.live_index == (3, 40, 2)
    assert row.first.checkpoint_key == "model.layers.1.block_sparse_moe.experts.3.w3.weight"
    assert row.first.checkpoint_index == (8, 2)
    assert [fault.what for fault in faults(result)] == ["mismatch"]


def test_two_folders_of_torch(model, tmp_path):
    for name in ("one", "two"):
        dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / name, no_dist=True)
        model.model.norm.weight.data[1] += 1
    assert set(wrong(compare_checkpoints(tmp_path / "one", tmp_path / "two"))) == {"model.model.norm.weight"}
    assert compare_checkpoints(tmp_path / "one", tmp_path / "one").verdict is WeightsVerdict.PASS


def test_what_only_one_side_has_is_no_pass(original, tmp_path):
    tensors = load_file(original / "model.safetensors")
    shutil.copy(original / "config.json", tmp_path / "config.json")
    tensors["model.extra"] = tensors.pop("model.norm.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    result = compare_checkpoints(tmp_path, original)
    assert result.verdict is WeightsVerdict.FAIL
    assert {(fault.what, fault.subject) for fault in faults(result)} == {
        ("uncompared", "model.extra"),
        ("unread", "model.norm.weight"),
    }


def test_casts_and_samples(original, tmp_path):
    tensors = {key: value.bfloat16() for key, value in load_file(original / "model.safetensors").items()}
    shutil.copy(original / "config.json", tmp_path / "config.json")
    save_file(tensors, tmp_path / "model.safetensors")
    result = compare_checkpoints(tmp_path, original)
    assert result.verdict is WeightsVerdict.PASS
    assert result.count(RowStatus.DTYPE_CAST) == len(tensors)
    assert compare_checkpoints(tmp_path, original, sample=0.5).verdict is WeightsVerdict.INCOMPLETE


def test_checkpoints_that_cannot_be_related_are_not_compared(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        save_file({name: torch.zeros(3)}, tmp_path / name / "model.safetensors")
    result = compare_checkpoints(tmp_path / "a", tmp_path / "b")
    assert result.verdict is WeightsVerdict.INCOMPLETE
    assert "use different names" in result.incomplete
    assert "no such file" in compare_checkpoints(tmp_path / "c", tmp_path / "b").errors[0][1]


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 64))
@settings(deadline=None)
def test_slabs_tile_a_tensor(shape, limit):
    seen = torch.zeros(shape, dtype=torch.int64)
    for slab in slabs("w", shape, 1, limit):
        seen[tuple(slice(low, low + size) for low, size in zip(slab.offsets, slab.sizes, strict=True))] += 1
    assert bool((seen == 1).all())


def test_any_strides_and_dtypes_of_saved_tensors(tmp_path):
    values = {
        "plain": torch.randn(5, 7),
        "transposed": torch.randn(6, 3).t(),
        "part": torch.randn(10, 4)[2:5, ::2],
        "half": torch.randn(4).bfloat16(),
        "scalar": torch.tensor(3),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "eight": torch.randn(5, 2).to(torch.float8_e4m3fn),
    }
    dcp.save(values, checkpoint_id=tmp_path / "dcp", no_dist=True)
    folder = read_folder(tmp_path / "dcp")
    assert folder.refused == {}
    with Files() as files:
        for name, value in values.items():
            region = SymbolicTensor.leaf(name, value.shape, value.dtype)
            found = Reader(folder.tensors, files).box(region, (0,) * value.dim(), tuple(value.shape))
            assert found.dtype == value.dtype
            assert np.array_equal(bits_of(found), bits_of(value)), name


def test_names_that_only_one_side_has_are_told_without_a_config(tmp_path):
    """Without a config.json nothing can be converted, and what both have under one name is compared all the same."""
    for name, keys in (("one", "ab"), ("two", "bc"), ("other", "xy")):
        (tmp_path / name).mkdir()
        save_file({key: torch.ones(2, 3) for key in keys}, tmp_path / name / "model.safetensors")
    result = compare_checkpoints(tmp_path / "one", tmp_path / "two")
    assert result.verdict is WeightsVerdict.FAIL
    rows = {(row.kind, row.name): row for row in result.rows}
    assert rows[RowKind.LIVE, "b"].status is RowStatus.EXACT
    assert rows[RowKind.LIVE, "a"].reason == f"{tmp_path / 'two'} has no tensor of this name"
    assert rows[RowKind.CHECKPOINT, "c"].reason == f"{tmp_path / 'one'} has no tensor for it"
    assert {(fault.what, fault.subject) for fault in faults(result)} == {("uncompared", "a"), ("unread", "c")}
    assert not any("model" in fault.message.replace(str(tmp_path), "") for fault in faults(result))
    unrelated = compare_checkpoints(tmp_path / "one", tmp_path / "other")
    assert unrelated.verdict is WeightsVerdict.INCOMPLETE
    assert "neither has a config.json" in unrelated.incomplete


def test_what_a_dcp_folder_holds_beside_the_model_is_left_out_and_listed(model, original, tmp_path):
    state = {"model": model.state_dict(), "optim": {"state": {"w": {"exp_avg": torch.ones(2)}}}, "step": 3}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for result in (compare_checkpoints(tmp_path / "dcp", original), compare_checkpoints(original, tmp_path / "dcp")):
        assert result.verdict is WeightsVerdict.PASS
        excluded = {row.name: row.reason for row in result.rows if row.status is RowStatus.EXCLUDED}
        assert excluded == {"optim.state.w.exp_avg": "not below model."}


REFUSED = object()


def outcome(kind, function, argument):
    """What a function returns, or `REFUSED` and the text of the one kind of error that it may raise."""
    try:
        return function(argument), ""
    except kind as error:
        return REFUSED, str(error).strip()


class Boom:
    def __reduce__(self):
        return (print, ("it was executed",))


def test_nothing_is_executed(tmp_path, capsys):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Boom()))
    with pytest.raises(ReadError, match="expected the metadata of a checkpoint"):
        read_folder(tmp_path)
    assert capsys.readouterr().out == ""


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_metadata_is_a_read_error_and_never_worse(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "damaged"
    if not folder.exists():
        dcp.save({"w": torch.randn(3), "v": torch.randn(2, 2)}, checkpoint_id=folder, no_dist=True)
        (folder / "good").write_bytes((folder / ".metadata").read_bytes())
    good = (folder / "good").read_bytes()
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    (folder / ".metadata").write_bytes(bytes(damaged[: data.draw(st.integers(1, len(good)))]))
    found, refused = outcome(ReadError, read_folder, folder)
    if found is REFUSED:
        assert refused
        return
    assert all(isinstance(name, str) for name in (*found.tensors, *found.refused))
    assert all(key == source.key for key, source in found.tensors.items())
