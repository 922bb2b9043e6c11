"""Checkpoints in the formats of compressed-tensors: kept packed, and decoded while loading."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from safetensors.torch import load_file, save_file

import shardlint
from shardlint.checkpoint.folder import collect_checkpoint
from shardlint.collect.model import model_facts
from shardlint.introspect.walk import walk
from shardlint.weights import RowKind, RowStatus, WeightsVerdict, conversions, faults, verify, worker
from shardlint.weights.compare.bits import bits_of
from shardlint.weights.compare.threads import Options
from shardlint.weights.forward import forward
from shardlint.weights.shards import Shard
from support.loaded_models import assert_bit_found, loaded, mixtral_config, saved, tiny_llama
from support.shrink import quiet

pytest.importorskip("compressed_tensors")
pytest.importorskip("accelerate")
LAYER = "model.layers.1.self_attn.q_proj"
# Presets of the library, with the format that it stores them in.
PRESETS = {
    "W8A8": "int-quantized",
    "W4A16": "pack-quantized",
    "W4A16_ASYM": "pack-quantized",
    "W3A16": "pack-quantized",
    "FP8": "float-quantized",
    "FP8_DYNAMIC": "float-quantized",
    "FP8_BLOCK": "float-quantized",
    "NVFP4A16": "nvfp4-pack-quantized",
    "NVFP4": "nvfp4-pack-quantized",
    "MXFP4A16": "mxfp4-pack-quantized",
    "MXFP6A16": "mxfp6-pack-quantized",
    "MXFP8A16": "mxfp8-quantized",
}
KEPT = [name for name in PRESETS if name != "W4A16_ASYM"]  # Transformers 5.24 cannot load its zero points packed


def scheme_of(preset: str) -> Any:
    """The preset with groups and blocks that fit small weights."""
    from compressed_tensors.quantization import preset_name_to_scheme

    scheme = preset_name_to_scheme(preset, ["Linear"])
    for arguments in (scheme.weights, scheme.input_activations):
        if arguments is not None and arguments.group_size == 128:
            arguments.group_size = 32
        if arguments is not None and arguments.block_structure:
            arguments.block_structure = [32, 32]
    return scheme


def scales_of(weight: torch.Tensor, arguments: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Scales of the shape that the scheme wants; powers of two, which all formats can hold."""
    rows, columns = weight.shape
    shapes = {
        "tensor": (1,),
        "channel": (rows, 1),
        "block": (rows // 32, columns // 32),
        "group": (rows, columns // (arguments.group_size or columns)),
    }
    shapes["tensor_group"] = shapes["group"]
    shape = shapes[str(arguments.strategy)]
    found = {"weight_scale": torch.exp2(torch.randint(-9, -5, shape, generator=generator).float())}
    if str(arguments.strategy) == "tensor_group":
        found["weight_global_scale"] = torch.tensor([1024.0])
        found["weight_scale"] *= 1024
    if not arguments.symmetric:
        found["weight_zero_point"] = torch.randint(-3, 4, shape, dtype=torch.int8, generator=generator)
    return {
        name: value if name == "weight_global_scale" or name.endswith("point") else value.to(weight.dtype)
        for name, value in found.items()
    }


def compress(folder: Path, preset: str) -> None:
    """Rewrite a checkpoint with its projections and experts as the library's own compressor stores them."""
    from compressed_tensors.compressors import BaseCompressor

    scheme, generator = scheme_of(preset), torch.Generator().manual_seed(2)
    compressor = BaseCompressor.get_value_from_registry(PRESETS[preset])
    found = {}
    for key, value in load_file(folder / "model.safetensors").items():
        if not re.search(r"_proj\.weight$|experts\..*\.w[123]\.weight$", key):
            found[key] = value
            continue
        parts = compressor.compress({"weight": value, **scales_of(value, scheme.weights, generator)}, scheme)
        if scheme.input_activations is not None and not scheme.input_activations.dynamic:
            parts["input_scale"] = torch.tensor([0.5], dtype=value.dtype)
        if preset == "NVFP4":
            parts["input_global_scale"] = torch.tensor([0.5])
        found |= {f"{key.removesuffix('weight')}{name}": value.contiguous() for name, value in parts.items()}
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": PRESETS[preset],
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
        "ignore": ["lm_head", "re:.*gate$"],
    }
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module", autouse=True)
def _uncompiled():
    """The library compiles its decoders for every shape, which takes longer than all else here."""
    before = torch._dynamo.config.disable
    torch._dynamo.config.disable = True
    yield
    torch._dynamo.config.disable = before


@pytest.fixture(scope="module", params=PRESETS)
def stored(request, tmp_path_factory):
    config, kind = tiny_llama()
    folder = saved(tmp_path_factory.mktemp("compressed"), config, kind, dtype=torch.bfloat16)
    compress(folder, request.param)
    return folder, kind, request.param


def decoded(folder: Path, kind: Any) -> Any:
    from transformers import CompressedTensorsConfig

    return loaded(folder, kind, quantization_config=CompressedTensorsConfig(dequantize=True))


def everything_checked(result) -> bool:
    return all(row.checked == row.expected for row in result.rows if row.status is not RowStatus.EXCLUDED)


def test_kept_packed(stored):
    folder, kind, preset = stored
    if preset not in KEPT:
        pytest.skip("Transformers cannot load it packed")
    model = loaded(folder, kind)
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert everything_checked(result)
    assert not any(row.status is RowStatus.EXCLUDED for row in result.rows)
    for name, tensor in model.model.layers[1].self_attn.q_proj.state_dict().items():
        index = tuple(size - 1 for size in tensor.shape)
        assert_bit_found(model, folder, tensor, index, f"{LAYER}.{name}")


def test_decoded_while_loading(stored):
    folder, kind, _ = stored
    model = decoded(folder, kind)
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert everything_checked(result)
    excluded = {row.name for row in result.rows if row.status is RowStatus.EXCLUDED}
    assert all(re.search(r"\.input_(global_)?scale$", name) for name in excluded)
    bits_of(model.get_parameter(f"{LAYER}.weight"))[7, 9] ^= 1
    (row,) = (row for row in verify(model, folder).of_kind(RowKind.LIVE) if row.load_mismatches)
    assert (row.name, row.load_mismatches, row.first and row.first.live_index) == (f"{LAYER}.weight", 1, (7, 9))


def test_a_stored_bit_is_found_in_the_decoded_weight(stored, tmp_path):
    folder, kind, _ = stored
    model = decoded(folder, kind)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in (f"{LAYER}.weight_packed", f"{LAYER}.weight") if name in tensors)
    bits_of(tensors[name])[100, 1] ^= 1
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (row,) = (row for row in verify(model, tmp_path).of_kind(RowKind.LIVE) if row.load_mismatches)
    assert row.name == f"{LAYER}.weight"
    assert row.first
    assert row.first.live_index[0] == 100


def test_no_rule_takes_codes_for_numbers(stored):
    folder, kind, preset = stored
    models = [decoded(folder, kind), *([loaded(folder, kind)] if preset in KEPT else [])]
    for model in models:
        assert not shardlint.lint(model, checkpoint=folder, config=False).findings


@pytest.mark.parametrize("preset", ["W4A16", "FP8_DYNAMIC"])
def test_experts_decoded_while_loading(preset, tmp_path):
    from transformers import MixtralForCausalLM

    config = mixtral_config(hidden_size=64, intermediate_size=32)
    folder = saved(tmp_path, config, MixtralForCausalLM, dtype=torch.bfloat16)
    compress(folder, preset)
    with quiet():
        model = decoded(folder, MixtralForCausalLM)
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert everything_checked(result)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    bits_of(model.get_parameter(name))[2, 40, 5] ^= 1
    (row,) = (row for row in verify(model, folder).of_kind(RowKind.LIVE) if row.load_mismatches)
    assert (row.name, row.load_mismatches, row.first and row.first.live_index) == (name, 1, (2, 40, 5))


@pytest.mark.parametrize("preset", ["W4A16", "FP8_DYNAMIC"])
def test_experts_are_decoded_some_at_a_time(preset, tmp_path, monkeypatch):
    from transformers import MixtralForCausalLM

    config = mixtral_config(hidden_size=64, intermediate_size=32, num_local_experts=5)
    folder = saved(tmp_path, config, MixtralForCausalLM, dtype=torch.bfloat16)
    compress(folder, preset)
    model = decoded(folder, MixtralForCausalLM)
    monkeypatch.setattr(worker, "PORTION_BYTES", 300_000)  # of 2 KiB of codes and 128 KiB on the way for each expert
    seen = portions_seen(monkeypatch)
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert everything_checked(result)
    if seen:
        assert set(seen) >= {(0, 2), (2, 4), (4, 5)}
    name = "model.layers.1.mlp.experts.gate_up_proj"
    bits_of(model.get_parameter(name))[3, 40, 5] ^= 1
    (row,) = (row for row in verify(model, folder).of_kind(RowKind.LIVE) if row.load_mismatches)
    assert (row.name, row.load_mismatches, row.first and row.first.live_index) == (name, 1, (3, 40, 5))


def portions_seen(monkeypatch) -> list[tuple[int, int]]:
    """All portions of conversions that are evaluated from now on."""
    found: list[tuple[int, int]] = []
    whole = conversions.ConversionGroup.portions

    def portions(self, bound):
        for rows in whole(self, bound):
            found.append(rows)
            yield rows

    monkeypatch.setattr(conversions.ConversionGroup, "portions", portions)
    return found


def test_codes_are_decoded_some_rows_at_a_time(stored, monkeypatch):
    folder, kind, preset = stored
    model = decoded(folder, kind)
    monkeypatch.setattr(worker, "PORTION_BYTES", 1)
    seen = portions_seen(monkeypatch)
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert everything_checked(result)
    if preset.startswith(("W8A8", "FP8")):
        assert not seen  # followed without values
    else:
        assert set(seen) >= {(0, 32), (96, 128), (224, 256)}
        assert verify(model, folder, max_memory=300_000).verdict is WeightsVerdict.PASS
        assert verify(model, folder, max_memory=10_000).verdict is WeightsVerdict.FAIL
    bits_of(model.get_parameter(f"{LAYER}.weight"))[97, 9] ^= 1
    (row,) = (row for row in verify(model, folder).of_kind(RowKind.LIVE) if row.load_mismatches)
    assert (row.name, row.load_mismatches, row.first and row.first.live_index) == (f"{LAYER}.weight", 1, (97, 9))


def test_a_shard_of_a_decoded_weight(tmp_path, monkeypatch):
    """Rows and columns of several places, as uneven and strided shards have them."""
    config, kind = tiny_llama()
    folder = saved(tmp_path, config, kind, dtype=torch.bfloat16)
    compress(folder, "W4A16_ASYM")
    model = decoded(folder, kind)
    weight = model.get_parameter(f"{LAYER}.weight").detach()
    rows, columns = [(100, 28), (0, 10), (40, 30)], [(64, 64)]
    local = torch.cat([weight[start : start + size, 64:] for start, size in rows])
    shard = Shard(
        names=(f"{LAYER}.weight",),
        local=local,
        global_shape=(128, 128),
        ranges=(tuple(rows), tuple(columns)),
        logical=(68, 64),
    )
    monkeypatch.setattr(worker, "PORTION_BYTES", 1)
    plan = forward(model, model_facts(walk(model)), collect_checkpoint(folder))
    bits_of(local)[30, 7] ^= 1  # row 2 of the global weight
    found = worker.Worker(plan, Options(threads=1)).run([shard])
    (live,) = found.live
    assert (live.expected, live.covered) == (68 * 64, 68 * 64)
    wrong = [count.tally for count in found.counts if count.tally.load_mismatches]
    assert sum(count.tally.checked for count in found.counts) == 68 * 64
    assert [(tally.load_mismatches, tally.first and tally.first.live_index) for tally in wrong] == [(1, (30, 7))]
