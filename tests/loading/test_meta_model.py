"""Building an architecture from an untrusted configuration: no remote code, no network, bounded, and no traces."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from shardlint import Section, Target, lint
from shardlint.checkpoint.folder import collect_checkpoint
from shardlint.collect import collect
from shardlint.loading.plan import ConfigRefusedError, PlanUnknownError, collect_plan
from support.folders import edit
from support.linting import facts_of, plan_of
from support.safetensors_files import write_file
from support.tiny import SMALL, llama, mixtral, saved


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
        ({}, "names no model_type"),
        ({"model_type": "acme"}, "knows no model type 'acme'"),
        ({"model_type": ["llama"]}, "knows no model type"),
        (LLAMA | {"architectures": ["AcmeForCausalLM"]}, "has no architecture 'AcmeForCausalLM'"),
        (LLAMA | {"architectures": ["pipeline"]}, "has no architecture 'pipeline'"),
        (LLAMA | {"architectures": ["os"]}, "has no architecture 'os'"),
        ({"model_type": "acme", "auto_map": {"AutoModel": "evil--model.Model"}}, "remote code is not run"),
        (LLAMA | {"quantization_config": {"quant_method": "acme"}}, "cannot be built"),
    ],
)
def test_what_cannot_be_built_says_why(config: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(PlanUnknownError, match=said) as caught:
        plan_of(folder(tmp_path, config))
    assert not isinstance(caught.value, ConfigRefusedError)  # nothing is wrong with these: they are not known here


ROPE = {"rope_type": "bogus", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "field", "said"),
    [
        (LLAMA | {"num_hidden_layers": 10**12}, "num_hidden_layers", "1000000000000 is more than any model has"),
        (LLAMA | {"num_labels": 10**9}, "num_labels", "more than any model has"),
        (LLAMA | {"hidden_size": 10**17}, "hidden_size", "more than any model has"),
        (LLAMA | {"hidden_size": -4}, "", "negative dimension"),
        (LLAMA | {"hidden_size": "wide"}, "hidden_size", "expected int, got str (value: 'wide')"),
        (LLAMA | {"num_hidden_layers": 2.5}, "num_hidden_layers", "expected int, got float (value: 2.5)"),
        (LLAMA | {"num_attention_heads": 0}, "", "ZeroDivisionError"),
        (LLAMA | {"num_attention_heads": 5}, "", "not a multiple of the number of attention heads (5)"),
        (LLAMA | {"hidden_act": "siluu"}, "hidden_act", "knows no 'siluu'; expected for example silu"),
        (LLAMA | {"rope_parameters": ROPE}, "rope_parameters.rope_type", "expected default, dynamic, linear, llama3"),
        (
            {"model_type": "llava", "text_config": LLAMA | {"hidden_size": "x"}, "hidden_size": 4},
            "text_config.hidden_size",
            "expected int, got str (value: 'x')",
        ),
    ],
)
def test_what_the_library_refuses_names_the_field(config: Any, field: str, said: str, tmp_path: Path) -> None:
    facts = collect(Target(checkpoint=folder(tmp_path, config)))
    assert facts.checkpoint is not None
    (problem,) = facts.checkpoint.problems
    assert (problem.file, problem.kind, problem.key or "") == ("config.json", "config-refused", field)
    assert said in problem.detail
    assert said in facts.why_absent(Section.PLAN)
    report = lint(checkpoint=folder(tmp_path, config))
    assert [(item.code, item.subject) for item in report.errors()] == [("D523", "config.json")]
    assert report.exit_status == 1
    assert "the coverage of the checkpoint is unknown" in str(report).splitlines()[-1]


@pytest.mark.parametrize("config", [{"model_type": "acme"}, LLAMA | {"architectures": ["AcmeForCausalLM"]}])
def test_an_unknown_architecture_is_no_fault_and_not_passed_over(config: Any, tmp_path: Path) -> None:
    report = lint(checkpoint=folder(tmp_path, config))
    assert report.findings == ()
    assert report.coverage is not None
    assert report.coverage["status"] == "NOT_LOADED"
    assert "remote code is not run" in report.coverage["reason"]
    text = str(report)
    assert "Coverage  unknown: Transformers" in text
    assert "the coverage of the checkpoint is unknown" in text.splitlines()[-1]


def test_no_configuration_at_all_is_a_warning(tmp_path: Path) -> None:
    report = lint(checkpoint=folder(tmp_path, None))
    assert [(item.code, item.severity.value) for item in report.findings] == [("D523", "warning")]
    assert "there is no model whose type a pack could be asked for" in str(report).replace("\n   ", "")


def test_a_class_knows_the_type_that_an_old_configuration_does_not_name(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "model_type"}))
    assert all(item.status == "loaded" for item in plan_of(tmp_path).tensors)


def test_a_broken_generation_config_stops_no_rule_about_the_weights(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    (tmp_path / "generation_config.json").write_text("{bad")
    edit(tmp_path, lambda files: files["model.safetensors"].pop("model.norm.weight") and None)
    report = lint(checkpoint=tmp_path)
    found = [(item.code, item.severity.value) for item in report.findings]
    assert found == [("D501", "error"), ("D523", "warning")]


def test_without_a_live_model_no_finding_speaks_of_one(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    edit(tmp_path, lambda files: files["model.safetensors"].update({"x.norm": ("F32", [4])}))
    edit(tmp_path, lambda files: files["model.safetensors"].pop("model.norm.weight") and None)
    said = [item.message for item in lint(checkpoint=tmp_path).findings]
    assert [text.partition(";")[0] for text in said] == [
        "the architecture's tensor model.norm.weight has no source in the checkpoint",
        "the stored key x.norm has no place in the architecture",
    ]


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
    from shardlint.introspect.walk import walk

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


def test_numbers_that_json_has_not_are_no_fault(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_heads": 4, "head_dim": 8, "state_size": 4, "n_groups": 1, "num_hidden_layers": 1}
    config = {"model_type": "mamba2", "vocab_size": 16, "time_step_limit": [0.0, float("inf")], **sizes}
    path = folder(tmp_path, config)
    assert "Infinity" in (path / "config.json").read_text()  # as Python writes it, and older folders hold it
    assert plan_of(path).basis == "config"
