"""
Packed weights without the library that packed them: GPTQ, AWQ, and stand-ins for bitsandbytes.

Codes that are kept are compared, all else is refused by name.
"""

from __future__ import annotations

import copy
import json

import pytest
import torch
from attrs import frozen
from safetensors.torch import load_file, save_file

import shardlint
from shardlint.weights import RowKind, RowStatus, WeightsVerdict, faults, verify
from support.loaded_models import assert_bit_found, loaded, saved, tiny_llama

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
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert all(row.checked == row.expected for row in result.rows)
    for name, tensor in model.get_submodule(LAYER).named_buffers():
        index = tuple(size - 1 for size in tensor.shape)
        assert_bit_found(model, tmp_path, tensor, index, f"{LAYER}.{name}")


def test_codes_in_the_order_of_a_kernel_are_refused_by_name(tmp_path):
    model = stored(tmp_path, "gptq", MarlinLinear)
    result = verify(model, tmp_path)
    assert result.verdict is WeightsVerdict.FAIL
    refused = {row.name: row.reason for row in result.of_kind(RowKind.LIVE) if row.status is RowStatus.INCOMPLETE}
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
    assert result.verdict is WeightsVerdict.INCOMPLETE
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
    assert result.verdict is WeightsVerdict.INCOMPLETE
    assert "pip install -U bitsandbytes" in result.incomplete


class Params4bit(torch.nn.Parameter):
    """A stand-in for the class of bitsandbytes, known by its name."""


@frozen
class State:
    absmax: torch.Tensor

    def as_dict(self, packed: bool) -> dict[str, torch.Tensor]:
        assert packed
        return {"absmax": self.absmax, "quant_state.bitsandbytes__nf4": torch.tensor([123, 125], dtype=torch.uint8)}


def quantizer(*, pre_quantized: bool):
    """A quantiser like that of bitsandbytes, which needs no library to be made."""
    from transformers.integrations.bitsandbytes import Bnb4bitDeserialize
    from transformers.quantizers.base import HfQuantizer

    class Quantizer(HfQuantizer):
        serialized_names = {"weight": ["weight", "weight.absmax", "weight.quant_state.bitsandbytes__nf4"]}
        is_trainable = False

        def is_serializable(self) -> bool:
            return True

        def get_load_operations(self):
            return {"deserialize": Bnb4bitDeserialize}

        def param_needs_quantization(self, model, param_name, **_) -> bool:
            return isinstance(model.get_parameter(param_name), Params4bit)

    @frozen
    class Settings:
        quant_method: str = "bitsandbytes"

    return Quantizer(Settings(), pre_quantized=pre_quantized)


@pytest.fixture
def four_bits(tmp_path):
    """A model with one weight of 4 bits under a floating-point dtype, one pattern of which reads as NaN."""
    config, kind = tiny_llama()
    saved(tmp_path, config, kind, dtype=torch.bfloat16)
    model = loaded(tmp_path, kind)
    codes = torch.randint(-(2**15), 2**15, (128 * 128 // 4, 1), dtype=torch.int16)
    codes[7] = 0x7FC0
    weight = Params4bit(codes.view(torch.bfloat16), requires_grad=False)
    weight.quant_state = State(torch.rand(256))
    model.model.layers[1].self_attn.q_proj.weight = weight
    return tmp_path, model


def test_statistics_beside_a_weight_are_compared(four_bits):
    folder, model = four_bits
    weight = model.get_parameter(f"{LAYER}.weight")
    beside = {f"{LAYER}.weight.{name}": value for name, value in weight.quant_state.as_dict(packed=True).items()}
    tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}
    save_file(tensors | copy.deepcopy(beside), folder / "model.safetensors", metadata={"format": "pt"})
    model.hf_quantizer = quantizer(pre_quantized=True)
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert set(beside) < {row.name for row in result.of_kind(RowKind.LIVE)}
    assert all(row.checked == row.expected for row in result.rows)
    for tensor, index, name in ((weight.data, (7, 0), "weight"), (weight.quant_state.absmax, (3,), "weight.absmax")):
        assert_bit_found(model, folder, tensor, index, f"{LAYER}.{name}")


def test_values_made_while_loading_are_refused_by_name(four_bits):
    folder, model = four_bits
    model.hf_quantizer = quantizer(pre_quantized=False)
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.INCOMPLETE
    refused = {row.name: row.reason for row in result.of_kind(RowKind.LIVE) if row.status is RowStatus.NOT_COMPARED}
    statistics = ("absmax", "quant_state.bitsandbytes__nf4")
    assert set(refused) == {f"{LAYER}.weight", *(f"{LAYER}.weight.{name}" for name in statistics)}
    assert all("bitsandbytes quantised it while loading" in reason for reason in refused.values())
    codes = {item.code for item in shardlint.lint(model, checkpoint=folder, config=False).findings}
    assert not codes & {"D210", "D504", "D513"}


def test_codes_rearranged_for_a_processor_are_refused(four_bits):
    folder, model = four_bits

    @frozen
    class Rearranged(State):
        packing_format_for_cpu: bool = True

    model.get_parameter(f"{LAYER}.weight").quant_state = Rearranged(torch.rand(256))
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.FAIL
    assert "rearranged it for this processor" in result.errors[0][1]
