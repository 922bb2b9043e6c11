"""How Transformers 4 names keys, ties and writes, with a class of that line's shape: the library itself is another."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shardlint.loading.loader import PlannedTarget, PlanUnknownError
from shardlint.loading.transformers4_rules import KeyRules, saved_name, tied_names


class Base(nn.Module):
    base_model_prefix = "model"

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=True)
        self.embed = nn.Embedding(4, 2)
        self.norm = nn.LayerNorm(2)

    @staticmethod
    def _fix_state_dict_key_on_load(key: str) -> tuple[str, bool]:
        return key.replace("LayerNorm.gamma", "LayerNorm.weight"), "gamma" in key

    @staticmethod
    def _fix_state_dict_key_on_save(key: str) -> tuple[str, bool]:
        return key, False

    def get_input_embeddings(self) -> nn.Module:
        return self.embed


class Head(Base):
    _tied_weights_keys = ["lm_head.weight"]

    def __init__(self) -> None:
        super().__init__()
        del self.embed, self.norm
        self.model = Base()
        self.lm_head = nn.Linear(2, 4, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head


class LlavaHead(Head):
    _checkpoint_conversion_mapping = {"^language_model.model": "model", "^language_model.lm_head": "lm_head"}


def live(model: nn.Module) -> dict[str, PlannedTarget]:
    return {
        name: PlannedTarget(shape=tuple(value.shape), dtype="float32", identity=name)
        for name, value in model.state_dict().items()
    }


def names(model: Any, *keys: str, mapping: dict[str, str] | None = None) -> list[str]:
    return KeyRules.of(model, mapping, None).names(keys, live(model))


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.modeling_utils.VLMS", ["llava"], raising=False)


def test_the_prefix_of_the_base_model_is_decided_for_the_whole_checkpoint() -> None:
    assert names(Head(), "embed.weight", "norm.weight") == ["model.embed.weight", "model.norm.weight"]
    assert names(Base(), "model.embed.weight", "lm_head.weight") == ["embed.weight", "lm_head.weight"]
    assert names(Head(), "model.embed.weight", "lm_head.weight") == ["model.embed.weight", "lm_head.weight"]


def test_a_key_of_the_head_is_not_for_the_base_model_though_its_name_is_live() -> None:
    first, other = names(Base(), "model.norm.weight", "norm.weight")
    assert first == "norm.weight"
    assert other not in live(Base())


def test_legacy_names_and_mappings() -> None:
    assert names(Head(), "model.LayerNorm.gamma") == ["model.LayerNorm.weight"]
    assert names(LlavaHead(), "language_model.model.norm.weight", "model.x") == ["model.norm.weight", "model.x"]
    assert names(Head(), "language_model.model.norm.weight", "model.x")[0] == "language_model.model.norm.weight"
    mapping = {"^m1": "model", "^model": "never"}  # the first that matches, and no other
    assert names(Head(), "m1.norm.weight", "model.y", mapping=mapping) == ["model.norm.weight", "never.y"]


def test_saving_takes_the_mapping_of_the_class_back() -> None:
    assert saved_name(LlavaHead(), "model.norm.weight") == "language_model.model.norm.weight"
    assert saved_name(Head(), "model.norm.weight") == "model.norm.weight"


def test_ties_are_those_of_the_embeddings_that_are_asked_for() -> None:
    model = Head()
    assert tied_names(model) == {"lm_head.weight": "model.embed.weight"}  # asked for, shared or not
    model.config.tie_word_embeddings = False
    assert tied_names(model) == {}
    model.lm_head.weight = model.model.embed.weight  # listed by the class, and shared
    assert tied_names(model) == {"lm_head.weight": "model.embed.weight"}


def quantizer(method: str, **more: Any) -> Any:
    return SimpleNamespace(pre_quantized=True, quantization_config=SimpleNamespace(quant_method=method, **more))


def test_a_quantiser_that_makes_its_tensors_is_not_followed() -> None:
    assert KeyRules.of(Head(), None, quantizer("gptq")).key_mapping == {}
    for unknown in (quantizer("bitsandbytes"), quantizer("fp8", dequantize=True)):
        with pytest.raises(PlanUnknownError, match=re.escape("from 5.0 on")):
            KeyRules.of(Head(), None, unknown)


def test_the_model_is_not_touched() -> None:
    model = Head()
    before = {name: (id(value), value._version) for name, value in model.named_parameters()}
    names(model, "model.embed.weight")
    tied_names(model)
    assert {name: (id(value), value._version) for name, value in model.named_parameters()} == before
    assert torch.is_grad_enabled()
