"""GPTQ and AWQ, whose libraries cannot run here: codes that are kept are compared, all else is refused by name."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from shardlint.weights import Kind, Status, Verdict, faults, verify
from shardlint.weights.bits import bits_of
from weights.models import loaded, saved, tiny_llama

LAYER = "model.layers.1.self_attn.q_proj"


class TorchLinear(torch.nn.Module):
    """What both libraries put in place of a linear layer of 128 inputs: codes under their plain names."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        groups = inputs // 32

        def codes(*shape: int) -> torch.Tensor:
            return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)

        self.register_buffer("qweight", codes(inputs // 8, outputs))
        self.register_buffer("qzeros", codes(groups, outputs // 8))
        self.register_buffer("scales", torch.rand(groups, outputs).half())
        self.register_buffer("g_idx", torch.arange(inputs, dtype=torch.int32) // 32)


class MarlinLinear(TorchLinear):
    """One whose kernel wants another order."""


TorchLinear.__module__ = MarlinLinear.__module__ = "gptqmodel.nn_modules.qlinear"


def replaced(model, kind):
    for layer in model.model.layers:
        for parent in (layer.self_attn, layer.mlp):
            for name, child in list(parent.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(parent, name, kind(*child.weight.shape))
    return model


def stored(folder, method, linear=TorchLinear):
    """A checkpoint of the format and the model that it was saved from."""
    config, kind = tiny_llama()
    torch.manual_seed(3)
    saved(folder, config, kind, dtype=torch.float16)
    model = replaced(loaded(folder, kind), linear)
    save_file({name: value.clone() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 32}
    (folder / "config.json").write_text(json.dumps(settings))
    return model


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_codes_that_are_kept_are_compared_as_stored(method, tmp_path):
    model = stored(tmp_path, method)
    result = verify(model, tmp_path)
    assert result.verdict is Verdict.PASS, faults(result)
    assert all(row.checked == row.expected for row in result.rows)
    for name, tensor in model.get_submodule(LAYER).named_buffers():
        index = tuple(size - 1 for size in tensor.shape)
        bits_of(tensor)[index] ^= 1
        (row,) = (row for row in verify(model, tmp_path).of_kind(Kind.LIVE) if row.load_mismatches)
        assert (row.name, row.load_mismatches) == (f"{LAYER}.{name}", 1)
        assert row.first
        assert (row.first.live_index, row.first.checkpoint_index) == (index, index)
        bits_of(tensor)[index] ^= 1


def test_codes_in_the_order_of_a_kernel_are_refused_by_name(tmp_path):
    model = stored(tmp_path, "gptq", MarlinLinear)
    result = verify(model, tmp_path)
    assert result.verdict is Verdict.FAIL
    refused = {row.name: row.reason for row in result.of_kind(Kind.LIVE) if row.status is Status.INCOMPLETE}
    assert set(refused) == {name for name, _ in model.named_buffers() if "rotary" not in name}
    assert "MarlinLinear of gptqmodel may hold it in its kernel's own order" in refused[f"{LAYER}.qweight"]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("gptq", "GPTQ"),
        ("awq", "the checkpoint is stored as awq, the live model holds no packed weights"),
        ("strange", "Unknown quantization type, got strange"),
    ],
)
def test_a_scheme_that_nothing_here_decodes_is_never_passed(method, said, tmp_path):
    stored(tmp_path, method)
    config, kind = tiny_llama()
    result = verify(kind(config), tmp_path)
    assert result.verdict is Verdict.INCOMPLETE
    assert said.lower() in result.incomplete.lower()


def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch):
    from transformers.quantizers import quantizer_bnb_4bit

    monkeypatch.setattr(quantizer_bnb_4bit, "is_bitsandbytes_available", lambda: False)
    config, kind = tiny_llama()
    folder = saved(tmp_path, config, kind, dtype=torch.float16)
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(settings))
    assert load_file(folder / "model.safetensors")
    result = verify(kind(config), folder)
    assert result.verdict is Verdict.INCOMPLETE
    assert "pip install -U bitsandbytes" in result.incomplete
