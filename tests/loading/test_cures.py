"""Renamings that would cure open keys, parts of a model, and names that a library renames itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from support.linting import facts_of, findings_of


def _attention() -> nn.Module:
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    return nn.ModuleDict(
        {"layers": nn.ModuleList(nn.ModuleDict({n: nn.Linear(4, 4) for n in names}) for _ in range(3))}
    )


def _mlp() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8, bias=False), nn.GELU(), nn.Linear(8, 4, bias=False))

    blocks = nn.ModuleList(nn.ModuleDict({"mlp": block()}) for _ in range(3))
    return nn.ModuleDict({"emb": nn.Embedding(8, 4), "h": blocks})


def _stored(folder: Path, model: nn.Module, rename: Callable[[str], str]) -> Path:
    save_file({rename(name): value.clone() for name, value in model.state_dict().items()}, folder / "net.safetensors")
    return folder


CASES = {
    "two-linears": (_mlp, lambda key: key.replace("mlp.0", "mlp.c_fc").replace("mlp.2", "mlp.c_proj"), 2),
    "one-prefix": (_attention, lambda key: key.replace("layers.", "blocks."), 1),
    "a-segment-in-some": (_mlp, lambda key: key.replace("0.mlp.", "0.mlp._orig_mod."), 1),
    "a-segment-of-remat": (_attention, lambda key: key.replace("layers.1.", "layers.1._checkpoint_wrapped_module."), 1),
    "alike-shapes": (
        _attention,
        lambda key: re.sub("([qkv])_proj", lambda match: {"q": "query", "k": "key", "v": "value"}[match[1]], key),
        3,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_renaming_is_inferred_told_once_and_cures(tmp_path: Path, name: str) -> None:
    build, rename, count = CASES[name]
    model = build()
    facts = facts_of(_stored(tmp_path, model, rename), model)
    found = findings_of(facts, "D501", "D510", "D522", "D524")
    assert [finding.code for finding in found] == ["D501"] * count
    assert facts.plan is not None
    for cure in facts.plan.cures:
        for key, target in zip(cure.keys, cure.names, strict=True):
            assert rename(target) == key
            assert re.sub(cure.source, cure.target, key) == target


def test_names_that_do_not_tell_are_not_guessed(tmp_path: Path) -> None:
    model = _attention()
    numbers = {"q_proj": "x1", "k_proj": "x2", "v_proj": "x3", "o_proj": "x4"}
    facts = facts_of(_stored(tmp_path, model, lambda key: re.sub(r"\w_proj", lambda m: numbers[m[0]], key)), model)
    assert facts.plan is not None
    assert facts.plan.cures == ()
    assert {finding.code for finding in findings_of(facts, "D501", "D524")} == {"D524"}


def test_candidates_have_the_same_shape_and_layer(tmp_path: Path) -> None:
    model = _mlp()
    stored: dict[str, Any] = {name: value.clone() for name, value in model.state_dict().items()}
    stored["h.1.mlp.zz.weight"] = stored.pop("h.1.mlp.2.weight")
    stored["h.1.mlp.22.weight"] = torch.zeros(3, 3)
    save_file(stored, tmp_path / "net.safetensors")
    found = {finding.subject: finding for finding in findings_of(facts_of(tmp_path, model), "D501")}
    assert found["h.1.mlp.2.weight"].evidence["nearest"] == ("h.1.mlp.zz.weight",)


class _OldBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q = nn.Linear(4, 4)
        self.to_out = nn.ModuleList([nn.Linear(4, 4)])
        self._from_deprecated_attn_block = True


def test_old_attention_names_of_diffusers_are_followed(tmp_path: Path) -> None:
    model = nn.ModuleDict({"mid": _OldBlock()})
    folder = _stored(tmp_path, model, lambda key: key.replace("to_q", "query").replace("to_out.0", "proj_attn"))
    assert findings_of(facts_of(folder, model), "D501", "D510") == []
    model["mid"]._from_deprecated_attn_block = False
    assert findings_of(facts_of(folder, model), "D501", "D524") != []


def test_a_module_around_a_model_is_judged_by_the_models_folder(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    trunk = BertModel(BertConfig(vocab_size=16, **sizes))
    trunk.save_pretrained(tmp_path)
    around = nn.ModuleDict({"body": nn.ModuleDict({"model": trunk})})
    facts = facts_of(tmp_path, around)
    assert facts.plan is not None
    assert facts.plan.part == "body.model."
    assert findings_of(facts, "D501", "D504", "D510", "D524") == []
    around["head"] = nn.Linear(8, 2)
    found = findings_of(facts_of(tmp_path, around), "D501")
    assert {(finding.subject, finding.severity.value) for finding in found} == {
        ("head.weight", "warning"),
        ("head.bias", "warning"),
    }
