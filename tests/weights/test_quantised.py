"""Quantised checkpoints: decoded by the library that owns the format, tile by tile or within a stated bound."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shardlint.weights import RowKind, RowStatus, WeightsVerdict, conversions, faults, verify
from shardlint.weights.compare.bits import bits_of
from support.loaded_models import loaded, mixtral_config, saved
from support.shrink import quiet

pytest.importorskip("accelerate")
BLOCK = 16


def configure(folder: Path, **quantization) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))


def to_fp8_blocks(folder: Path) -> None:
    """Weights of projections and experts as e4m3 with one scale for each block, as DeepSeek stores them."""
    found = {}
    for key, value in load_file(folder / "model.safetensors").items():
        found[key] = value
        if value.dim() == 2 and re.search(r"_proj|\.w[123]\.", key):
            rows, columns = value.shape
            blocks = value.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
            scale = blocks.abs().amax((1, 3)).float() / 448
            found[key] = (blocks / scale[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
            found[f"{key}_scale_inv"] = scale
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    configure(folder, quant_method="fp8", weight_block_size=[BLOCK, BLOCK], activation_scheme="dynamic")


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4), LlamaForCausalLM


def mixtral():
    from transformers import MixtralForCausalLM

    return mixtral_config(), MixtralForCausalLM


@pytest.mark.parametrize("kind", [llama, mixtral])
def test_fp8_blocks_decoded_while_loading(kind, tmp_path):
    config, model_class = kind()
    folder = saved(tmp_path, config, model_class, dtype=torch.bfloat16)
    to_fp8_blocks(folder)
    model = loaded(folder, model_class)
    weight = model.model.layers[1].self_attn.q_proj.weight
    if weight.dtype != torch.bfloat16:
        pytest.skip("this host keeps fp8 weights as they are")
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert sum(row.checked for row in result.of_kind(RowKind.CHECKPOINT)) == sum(
        row.expected for row in result.of_kind(RowKind.CHECKPOINT)
    )
    bits_of(weight)[3, 4] ^= 1
    result = verify(model, folder)
    (row,) = (row for row in result.of_kind(RowKind.LIVE) if row.load_mismatches)
    assert (row.load_mismatches, row.first and row.first.checkpoint_index) == (1, (3, 4))
    scales = load_file(folder / "model.safetensors")
    scales["model.layers.0.self_attn.v_proj.weight_scale_inv"][1, 1] *= 2
    save_file(scales, folder / "model.safetensors", metadata={"format": "pt"})
    wrong = {
        row.name: row.load_mismatches for row in verify(model, folder).of_kind(RowKind.LIVE) if row.load_mismatches
    }
    assert set(wrong) == {row.name, "model.layers.0.self_attn.v_proj.weight"}
    assert wrong["model.layers.0.self_attn.v_proj.weight"] == BLOCK * BLOCK


@pytest.fixture(scope="module")
def mxfp4(tmp_path_factory):
    """A gpt-oss checkpoint with its experts as mxfp4 blocks and scales."""
    from transformers import GptOssConfig, GptOssForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    config = GptOssConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
    )
    folder = saved(tmp_path_factory.mktemp("mxfp4"), config, GptOssForCausalLM, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    found = {}
    for key, value in load_file(folder / "model.safetensors").items():
        if not key.endswith(("gate_up_proj", "down_proj")):
            found[key] = value
            continue
        experts, inner, outer = value.shape
        shape = (experts, outer, inner // 32)
        found[f"{key}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        found[f"{key}_scales"] = torch.randint(118, 126, shape, dtype=torch.uint8, generator=generator)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    configure(folder, quant_method="mxfp4", modules_to_not_convert=skipped)
    return folder, GptOssForCausalLM


def test_a_conversion_that_needs_values_is_evaluated(mxfp4):
    folder, kind = mxfp4
    model = loaded(folder, kind)
    experts = model.model.layers[1].mlp.experts
    if experts.down_proj.dtype != torch.bfloat16:
        pytest.skip("this host keeps mxfp4 weights as they are")
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    experts.down_proj.data[1, 3, 4] += 1
    result = verify(model, folder)
    (row,) = (row for row in result.of_kind(RowKind.LIVE) if row.load_mismatches)
    assert (row.name, row.load_mismatches) == ("model.layers.1.mlp.experts.down_proj", 1)
    assert row.first is not None
    assert row.first.live_index == (1, 3, 4)


def test_beyond_the_memory_bound_it_is_refused_by_name(mxfp4):
    folder, kind = mxfp4
    model = loaded(folder, kind)
    if model.model.layers[1].mlp.experts.down_proj.dtype != torch.bfloat16:
        pytest.skip("this host keeps mxfp4 weights as they are")
    result = verify(model, folder, max_memory=1000)
    assert result.verdict is WeightsVerdict.FAIL
    refused = [row for row in result.of_kind(RowKind.LIVE) if row.status is RowStatus.INCOMPLETE]
    assert len(refused) == 4
    assert all("more than the bound of 1000" in row.reason for row in refused)
    assert all("sub() on an integer weight" in row.reason for row in refused), refused[0].reason


def test_packed_weights_that_are_kept_are_compared_as_stored(tmp_path):
    """GPTQ and AWQ: `qweight`, `qzeros`, `scales` and `g_idx` under their plain names."""
    layer = torch.nn.Module()
    layer.register_buffer("qweight", torch.randint(-(2**31), 2**31 - 1, (8, 16), dtype=torch.int32))
    layer.register_buffer("qzeros", torch.randint(-(2**31), 2**31 - 1, (1, 2), dtype=torch.int32))
    layer.register_buffer("scales", torch.rand(1, 16).half())
    layer.register_buffer("g_idx", torch.arange(64, dtype=torch.int32))
    model = torch.nn.ModuleDict({"proj": layer})
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    assert verify(model, tmp_path).verdict is WeightsVerdict.PASS
    layer.qweight[7, 3] ^= 1 << 12
    (fault,) = faults(verify(model, tmp_path))
    assert (fault.subject, fault.what) == ("proj.qweight", "mismatch")


def test_stacked_experts_are_decoded_one_at_a_time(mxfp4, monkeypatch):
    folder, kind = mxfp4
    model = loaded(folder, kind)
    experts = model.model.layers[1].mlp.experts
    if experts.down_proj.dtype != torch.bfloat16:
        pytest.skip("this host keeps mxfp4 weights as they are")
    seen = []
    portions = conversions.ConversionGroup.portions
    monkeypatch.setattr(
        conversions.ConversionGroup,
        "portions",
        lambda self, bound: seen.append(list(portions(self, bound))) or seen[-1],
    )
    result = verify(model, folder, max_memory=300_000)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert [(0, 1), (1, 2), (2, 3), (3, 4)] in seen
    assert all(row.checked == row.expected for row in result.rows)
    bits_of(experts.gate_up_proj)[2, 3, 4] ^= 1
    (row,) = (row for row in verify(model, folder, max_memory=300_000).of_kind(RowKind.LIVE) if row.load_mismatches)
    assert (row.name, row.first and row.first.live_index) == ("model.layers.1.mlp.experts.gate_up_proj", (2, 3, 4))


@pytest.mark.parametrize("kind", [llama, mixtral])
def test_fp8_blocks_that_are_kept(kind, tmp_path):
    """As on a host that computes with them: the loader merges the scales of experts as it merges their weights."""
    from transformers.quantizers.auto import AutoHfQuantizer

    config, model_class = kind()
    folder = saved(tmp_path, config, model_class, dtype=torch.bfloat16)
    to_fp8_blocks(folder)
    stored = load_file(folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    quantizer = AutoHfQuantizer.from_config(settings, pre_quantized=True)
    with torch.device("meta"), quiet():
        model = model_class(config).to(torch.bfloat16)
        quantizer.preprocess_model(model=model, dtype=torch.bfloat16, device_map=None, checkpoint_files=[])
    model.hf_quantizer = quantizer
    model.load_state_dict(merged(stored), assign=True)
    weight = model.model.layers[1].self_attn.q_proj.weight
    assert weight.dtype == torch.float8_e4m3fn
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert all(row.checked == row.expected for row in result.rows)
    scales = "model.layers.1.self_attn.q_proj.weight_scale_inv"
    if kind is mixtral:
        scales = "model.layers.1.mlp.experts.gate_up_proj_scale_inv"
    index = (1,) * model.get_parameter(scales).dim()
    bits_of(model.get_parameter(scales))[index] ^= 1
    (row,) = (row for row in verify(model, folder).of_kind(RowKind.LIVE) if row.load_mismatches)
    assert (row.name, row.load_mismatches, row.first and row.first.live_index) == (scales, 1, index)


def merged(stored):
    """The tensors with the experts of each layer in one stack."""
    found = {key: value for key, value in stored.items() if ".experts." not in key}
    for layer in range(2):
        name = f"model.layers.{layer}.block_sparse_moe.experts"
        if f"{name}.0.w1.weight" not in stored:
            continue
        for end in ("", "_scale_inv"):
            one, two, three = (
                torch.stack([stored[f"{name}.{expert}.w{number}.weight{end}"] for expert in range(4)])
                for number in (1, 2, 3)
            )
            found[f"model.layers.{layer}.mlp.experts.gate_up_proj{end}"] = torch.cat([one, three], 1)
            found[f"model.layers.{layer}.mlp.experts.down_proj{end}"] = two
    return {key.replace(".block_sparse_moe.", ".mlp."): value for key, value in found.items()}
