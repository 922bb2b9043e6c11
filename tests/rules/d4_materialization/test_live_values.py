"""The D4 rules that look at values, on live models, with each fault as its users met it."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

from shardlint import Severity, Target
from shardlint.analysis.origins import origins
from shardlint.collect import collect
from shardlint.engine.runner import SelectedRule, evaluate
from shardlint.testing import assert_findings, assert_not_evaluated, assert_rule_clean, run_rule
from shardlint_rules.d4_materialization.mixed_devices import MixedDevices
from shardlint_rules.d4_materialization.non_finite_state import NonFiniteState
from shardlint_rules.d4_materialization.precision_critical_narrowed import PrecisionCriticalNarrowed
from shardlint_rules.d4_materialization.tie_not_real import TieNotReal
from shardlint_rules.pack import shardlint_rules
from support.models import FAMILIES, llama, mamba, saved


def facts_of(model, **more):
    facts = collect(Target(model=model, **more))
    assert not facts.problems
    return facts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stock_model_loaded_from_its_checkpoint_gives_no_finding(family, tmp_path):
    model = FAMILIES[family]()
    loaded, info = type(model).from_pretrained(saved(model, tmp_path), output_loading_info=True)
    facts = facts_of(loaded, checkpoint=tmp_path, load_info=info)
    evaluation = evaluate(facts, [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code[:2] == "D4"])
    assert [item for item in evaluation.findings if item.severity is not Severity.INFO] == []


@pytest.mark.live("D408")
def test_a_head_with_nan_says_where_it_came_from(tmp_path):
    model = llama()
    with torch.no_grad():
        model.lm_head.weight[3, 2] = float("nan")
    assert_findings(run_rule(NonFiniteState, facts_of(model)), "lm_head.weight")
    loaded, info = type(model).from_pretrained(saved(model, tmp_path), output_loading_info=True)
    found = run_rule(NonFiniteState, facts_of(loaded, checkpoint=tmp_path, load_info=info))
    assert_findings(found, "lm_head.weight")
    assert "1 NaN of 512 elements; checkpoint: lm_head.weight in model-" in found.findings[0].message


def test_masks_and_bounds_are_no_defects():
    model = nn.Module()
    model.register_buffer("mask", torch.triu(torch.full((4, 4), -torch.inf), 1), persistent=False)
    model.register_buffer("upper", torch.tensor(torch.inf))
    assert_rule_clean(run_rule(NonFiniteState, facts_of(model)))
    model.mask[0, 1] = torch.nan
    assert_findings(run_rule(NonFiniteState, facts_of(model)), "mask")


@pytest.mark.live("D409")
def test_a_router_bias_in_bfloat16(tmp_path):
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8}
    experts = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "vocab_size": 32}
    head_dims = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 0}
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **heads, **experts, **head_dims))
    (name,) = [name for name, _ in model.named_buffers() if name.endswith("e_score_correction_bias")]
    model.get_buffer(name).copy_(torch.linspace(1.0, 1.01, 8))
    saved(model, tmp_path)
    assert not run_rule(PrecisionCriticalNarrowed, facts_of(model, checkpoint=tmp_path)).findings
    model.to(torch.bfloat16)
    found = run_rule(PrecisionCriticalNarrowed, facts_of(model, checkpoint=tmp_path))
    assert_findings(found, name, name.replace("e_score_correction_bias", "weight"))
    assert found.findings[0].evidence["distinct"] == 8
    assert found.findings[0].evidence["collapsed"] == 6


def test_a_state_space_model_in_bfloat16(tmp_path):
    model = mamba()
    saved(model, tmp_path / "wide")
    model.to(torch.bfloat16)
    critical = [f"backbone.layers.{layer}.mixer.{name}" for layer in (0, 1) for name in ("A_log", "D")]
    assert_not_evaluated(run_rule(PrecisionCriticalNarrowed, facts_of(model)), critical[0])
    assert_findings(run_rule(PrecisionCriticalNarrowed, facts_of(model, checkpoint=tmp_path / "wide")), *critical)
    saved(model, tmp_path / "narrow")
    assert_rule_clean(run_rule(PrecisionCriticalNarrowed, facts_of(model, checkpoint=tmp_path / "narrow")))


def test_ties_that_to_empty_lost():
    with torch.device("meta"):
        model = llama(tie_word_embeddings=True)
    model.to_empty(device="cpu")
    assert_findings(run_rule(TieNotReal, facts_of(model)), "lm_head.weight")


def test_ties_that_a_sharded_model_keeps(one_rank):
    with torch.device("meta"):
        model = fully_shard(llama(tie_word_embeddings=True))
    model.to_empty(device="cpu")
    assert_rule_clean(run_rule(TieNotReal, facts_of(model)))


def test_offloading_is_told(one_rank):
    model = fully_shard(nn.Linear(4, 4), offload_policy=CPUOffloadPolicy(pin_memory=False))
    assert facts_of(model).model.offload == ("a unit has a CPU offload policy",)
    plain = nn.Linear(2, 2)
    plain.hf_device_map = {"": "cpu"}
    assert facts_of(plain).model.offload == ("its device map places modules on the CPU or on disk",)
    assert facts_of(nn.Linear(2, 2)).model.offload == ()
    assert_rule_clean(run_rule(MixedDevices, facts_of(model)))


def test_offloading_by_hooks_is_told():
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model = nn.Sequential(nn.Linear(2, 2))
    add_hook_to_module(model[0], AlignDevicesHook(execution_device="cpu", offload=True))
    assert facts_of(model).model.offload == ("accelerate hooks offload modules",)


def test_where_each_value_came_from(tmp_path):
    model = llama(tie_word_embeddings=True)
    loaded, info = type(model).from_pretrained(saved(model, tmp_path), output_loading_info=True)
    found = origins(facts_of(loaded, checkpoint=tmp_path, load_info=info))
    assert found["model.norm.weight"].kind == "checkpoint"
    assert found["model.norm.weight"].keys == ("model.norm.weight",)
    assert found["model.rotary_emb.inv_freq"].text() == "recomputed: it is what LlamaModel._init_weights gives"
    assert found["lm_head.weight"].keys == ("model.embed_tokens.weight",)  # one tensor with the embedding
    assert {item.kind for item in found.values()} == {"checkpoint", "recomputed"}
    assert {item.kind for item in origins(facts_of(loaded)).values()} == {"recomputed", "tied", "unknown"}


def test_where_a_new_head_came_from(tmp_path):
    from transformers import LlamaForSequenceClassification

    saved(llama(), tmp_path)
    loaded, info = LlamaForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True, pad_token_id=0)
    found = origins(facts_of(loaded, checkpoint=tmp_path, load_info=info))
    assert found["score.weight"].text() == "initialiser: the load report calls it missing"


def test_fused_experts_came_through_a_conversion(tmp_path):
    model = FAMILIES["mixtral"]()
    loaded, info = type(model).from_pretrained(saved(model, tmp_path), output_loading_info=True)
    origin = origins(facts_of(loaded, checkpoint=tmp_path, load_info=info))["model.layers.0.mlp.experts.gate_up_proj"]
    assert (origin.kind, len(origin.keys)) == ("checkpoint", 8)
    assert "through" in origin.text()
