"""Building an architecture from an untrusted configuration: no remote code, no network, bounded, and no traces."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint.helpers import write_file
from plan.linting import facts_of, plan_of
from plan.tiny import SMALL, llama, mixtral, saved
from shardlint.collect.checkpoint import collect_checkpoint
from shardlint.collect.plan import PlanUnknownError, collect_plan


def folder(tmp_path: Path, config: Any) -> Path:
    write_file(tmp_path / "model.safetensors", {"model.norm.weight": ("F32", [16])})
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "no readable config.json"),
        ({}, "knows no model type None"),
        ({"model_type": "acme"}, "knows no model type 'acme'"),
        ({"model_type": ["llama"]}, "knows no model type"),
        (LLAMA | {"architectures": ["AcmeForCausalLM"]}, "has no architecture 'AcmeForCausalLM'"),
        (LLAMA | {"architectures": ["pipeline"]}, "has no architecture 'pipeline'"),
        (LLAMA | {"architectures": ["os"]}, "has no architecture 'os'"),
        ({"model_type": "acme", "auto_map": {"AutoModel": "evil--model.Model"}}, "remote code is not run"),
        (LLAMA | {"num_hidden_layers": 10**12}, "num_hidden_layers = 1000000000000, more than any model has"),
        (LLAMA | {"num_labels": 10**9}, "more than any model has"),
        (LLAMA | {"hidden_size": 10**17}, "more than any model has"),
        (LLAMA | {"hidden_size": -4}, "cannot be built"),
        (LLAMA | {"hidden_size": "wide"}, "cannot be built"),
        (LLAMA | {"num_attention_heads": 0}, "cannot be built"),
        (LLAMA | {"quantization_config": {"quant_method": "acme"}}, "cannot be built"),
    ],
)
def test_what_cannot_be_built_says_why(config: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(PlanUnknownError, match=said):
        plan_of(folder(tmp_path, config))


@pytest.mark.parametrize(
    "more",
    [
        {"auto_map": {"AutoModelForCausalLM": "evil--model.Model", "AutoConfig": "evil--config.Config"}},
        {"_attn_implementation": "evil/kernel", "attn_implementation": "evil/kernel"},
        {"use_kernels": True, "kernel_config": {"x": "evil/kernel"}},
    ],
)
def test_settings_that_reach_outside_are_not_followed(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("builtins.input", refuse)
    plan = plan_of(folder(tmp_path, LLAMA | more))
    assert plan.basis == "config"
    assert plan.tensor_by_name()["model.norm.weight"].status == "loaded"


def test_a_plan_leaves_no_traces(tmp_path: Path) -> None:
    saved(mixtral(), tmp_path)
    torch.manual_seed(7)
    random.seed(7)
    before = torch.get_rng_state(), random.getstate(), torch.get_default_dtype()
    plan_of(tmp_path)
    after = torch.get_rng_state(), random.getstate(), torch.get_default_dtype()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_live_model_is_not_touched(tmp_path: Path) -> None:
    model = mixtral()
    saved(model, tmp_path)
    model.train()
    model.lm_head.weight.requires_grad_(False)

    def state() -> list[Any]:
        tensors = model.state_dict(keep_vars=True)
        flags = [(name, id(value), value.requires_grad, value._version) for name, value in tensors.items()]
        return [*flags, [module.training for module in model.modules()], len(model._forward_hooks)]

    before = state()
    facts_of(tmp_path, model)
    assert state() == before


def test_a_model_without_transformers_is_planned_by_its_names_and_declared_renamings(tmp_path: Path) -> None:
    from shardlint.collect.model import model_facts
    from shardlint.collect.walk import walk

    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    write_file(
        tmp_path / "model.safetensors",
        {"old.0.weight": ("F32", [3, 2]), "old.0.bias": ("F32", [3]), "1.weight": ("F32", [1, 3])},
    )
    checkpoint, facts = collect_checkpoint(tmp_path), model_facts(walk(model))
    plan = collect_plan(checkpoint, model=model, model_facts=facts)
    assert plan.loader == "identity"
    assert [item.reason for item in plan.leftovers] == ["unexpected", "unexpected"]
    plan = collect_plan(checkpoint, model=model, model_facts=facts, renames=[(r"^old\.", "")])
    assert {item.name: item.status for item in plan.tensors} == {
        "0.weight": "loaded",
        "0.bias": "loaded",
        "1.weight": "loaded",
        "1.bias": "missing",
    }
    assert plan.conversions == (r"^old\. -> ",)
    with pytest.raises(PlanUnknownError, match="no regular expression"):
        collect_plan(checkpoint, model=model, model_facts=facts, renames=[("(", "")])


def test_a_function_that_transformers_no_longer_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(llama(), tmp_path)
    monkeypatch.delattr("transformers.core_model_loading.dot_natural_key")
    with pytest.raises(PlanUnknownError, match=r"Transformers \d.*dot_natural_key"):
        plan_of(tmp_path)
