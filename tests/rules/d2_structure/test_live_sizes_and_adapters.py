"""D108, D109, D207, D208 and D210 on live models."""

import json

import pytest
import torch
from torch import nn

from shardlint import Target
from shardlint.checkpoint.tokenizer import tokenizer_size
from shardlint.collect import CollectOptions, collect
from shardlint.testing import assert_findings, assert_not_evaluated, assert_rule_clean, run_rule
from shardlint_rules.d1_declarations.option_inert import OptionInert
from shardlint_rules.d1_declarations.wrap_class_missing import WrapClassMissing
from shardlint_rules.d2_structure.adapter_target_unmatched import AdapterTargetUnmatched
from shardlint_rules.d2_structure.config_shape_mismatch import ConfigShapeMismatch
from shardlint_rules.d2_structure.dead_shadow_of_tie import DeadShadowOfTie
from support.models import FAMILIES, llama, mixtral, qwen3_moe, saved

# PEFT reads a name that Transformers is giving up
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def facts_of(model, **more):
    facts = collect(Target(model=model, **more), CollectOptions(values=False))
    assert not facts.problems
    return facts


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", [WrapClassMissing, OptionInert, DeadShadowOfTie, ConfigShapeMismatch])
def test_stock_models(family, rule):
    assert_rule_clean(run_rule(rule, facts_of(FAMILIES[family]())))


@pytest.mark.live("D108")
def test_d108_a_block_that_was_replaced_by_another_class():
    model = llama()

    class Block(nn.Module):
        pass

    model.model.layers = nn.ModuleList([Block(), Block()])
    assert_findings(run_rule(WrapClassMissing, facts_of(model), classes=("LlamaDecoderLayer",)), "LlamaDecoderLayer")
    assert_rule_clean(run_rule(WrapClassMissing, facts_of(llama()), classes=("LlamaDecoderLayer",)))
    assert_findings(run_rule(WrapClassMissing, facts_of(llama()), classes=("LlamaLayer",)), "LlamaLayer")


@pytest.mark.live("D207")
def test_d207_a_head_that_the_tie_left_behind(tmp_path):
    model = llama(tie_word_embeddings=True)
    model.head = nn.Linear(16, 32, bias=False)
    assert_not_evaluated(run_rule(DeadShadowOfTie, facts_of(model)), "head.weight")
    saved(llama(tie_word_embeddings=True), tmp_path)
    assert_findings(run_rule(DeadShadowOfTie, facts_of(model, checkpoint=tmp_path)), "head.weight")


def adapted(model, **config):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, **config))


def test_adapter_facts():
    model = adapted(llama(), target_modules=["q_proj"], modules_to_save=["lm_head"])
    (adapter,) = facts_of(model).model.adapters
    assert (adapter.name, adapter.kind, adapter.base) == ("default", "LORA", "base_model.model")
    assert adapter.base_type == "transformers.models.llama.modeling_llama.LlamaForCausalLM"
    assert (adapter.targets, adapter.modules_to_save, adapter.restricted) == (("q_proj",), ("lm_head",), False)
    assert adapter.matched == tuple(f"base_model.model.model.layers.{n}.self_attn.q_proj" for n in (0, 1))
    assert len(adapter.keys) == 5


def test_d208_an_adapter_on_fused_experts():
    model = adapted(mixtral(), target_modules=["q_proj", "gate_proj", "up_proj"])
    found = run_rule(AdapterTargetUnmatched, facts_of(model))
    assert_findings(found, "gate_proj", "up_proj")
    assert "mlp.experts.gate_up_proj has that role" in found.findings[0].message


def test_d208_targets_of_parameters_and_all_linear():
    targets = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj"]}
    assert_rule_clean(run_rule(AdapterTargetUnmatched, facts_of(adapted(qwen3_moe(), **targets))))
    assert_rule_clean(run_rule(AdapterTargetUnmatched, facts_of(adapted(llama(), target_modules="all-linear"))))
    assert_rule_clean(run_rule(AdapterTargetUnmatched, facts_of(adapted(llama(), target_modules=r".*\.q_proj"))))
    first = adapted(llama(), target_modules=["q_proj"], layers_to_transform=[0])
    assert_rule_clean(run_rule(AdapterTargetUnmatched, facts_of(first)))


@pytest.mark.live("D208")
def test_d208_a_misspelt_target():
    model = adapted(llama(), target_modules=["q_proj", "k_prj"])
    found = run_rule(AdapterTargetUnmatched, facts_of(model))
    assert_findings(found, "k_prj")
    assert "modules are called k_proj" in found.findings[0].message


def test_d210_an_embedding_that_was_replaced_by_hand():
    model = llama()
    model.model.embed_tokens = nn.Embedding(24, 16)
    assert_findings(run_rule(ConfigShapeMismatch, facts_of(model)), "model.embed_tokens.weight")
    model.model.embed_tokens = nn.Embedding(64, 16)
    assert_rule_clean(run_rule(ConfigShapeMismatch, facts_of(model)))


def test_d210_layers_that_were_cut_by_hand():
    model = llama()
    model.model.layers = model.model.layers[:1]
    assert_findings(run_rule(ConfigShapeMismatch, facts_of(model)), "model.layers")
    model.config.num_hidden_layers = 1
    assert_rule_clean(run_rule(ConfigShapeMismatch, facts_of(model)))


def test_d210_experts_and_heads():
    model = qwen3_moe()
    model.config.num_experts = 8
    model.config.num_key_value_heads = 1
    found = run_rule(ConfigShapeMismatch, facts_of(model))
    assert {item.evidence["config"] for item in found.findings} == {"num_experts", "num_key_value_heads"}


def tokenizer(tokens, added=()):
    numbers = [{"id": number, "content": f"<{number}>"} for number in added]
    return {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": {f"t{n}": n for n in range(tokens)}},
        "added_tokens": numbers,
    }


def test_d210_a_tokenizer_larger_than_the_embedding(tmp_path):
    model = llama()
    saved(model, tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer(30, added=[30, 31])))
    assert_rule_clean(run_rule(ConfigShapeMismatch, facts_of(model, checkpoint=tmp_path)))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer(30, added=[30, 32])))
    found = run_rule(ConfigShapeMismatch, facts_of(model, checkpoint=tmp_path))
    assert_findings(found, "model.embed_tokens.weight")
    assert found.findings[0].evidence["tokenizer"] == 33


@pytest.mark.live("D210")
def test_d210_a_generation_config_of_another_model(tmp_path):
    model = llama()
    saved(model, tmp_path)
    assert_rule_clean(run_rule(ConfigShapeMismatch, facts_of(model, checkpoint=tmp_path)))
    ids = {"bos_token_id": 31, "eos_token_id": [2, 32], "decoder_start_token_id": 128000}
    (tmp_path / "generation_config.json").write_text(json.dumps(ids))
    found = run_rule(ConfigShapeMismatch, facts_of(model, checkpoint=tmp_path))
    ids = {item.evidence["config"]: item.evidence["ids"] for item in found.findings}
    assert ids == {"eos_token_id": (32,), "decoder_start_token_id": (128000,)}


@pytest.mark.parametrize(
    ("name", "content", "size"),
    [
        ("tokenizer.json", '{"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}', 2),
        ("tokenizer.json", '{"model": {}}', None),
        ("tokenizer.json", "rubbish", None),
        ("vocab.json", '{"a": 0, "b": 6}', 7),
        ("vocab.json", '{"a": 1e99}', None),
        ("vocab.json", '{"a": -4}', None),
        ("vocab.json", "[" * 5000, None),
        ("other.json", '{"a": 1}', None),
    ],
)
def test_sizes_of_tokenizers(tmp_path, name, content, size):
    (tmp_path / name).write_text(content)
    assert tokenizer_size(tmp_path) == size


@pytest.mark.live("D109")
def test_d109_prefetch_that_nobody_set():
    facts = facts_of(llama())
    found = run_rule(OptionInert, facts, prefetch=True, loads_checkpoint=True)
    assert_findings(found, "loads-checkpoint", "prefetch")


def test_meta_models_are_compared_as_well():
    with torch.device("meta"):
        model = llama()
        model.model.embed_tokens = nn.Embedding(24, 16)
    assert_findings(run_rule(ConfigShapeMismatch, facts_of(model)), "model.embed_tokens.weight")
