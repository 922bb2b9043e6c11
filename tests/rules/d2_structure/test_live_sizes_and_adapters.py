"""D108, D109, D207, D208 and D210 on live models."""

import json
import os

import pytest
import torch
from torch import nn

from shardlint import Target
from shardlint.checkpoint.tokenizer import tokenizer_size
from shardlint.collect import CollectOptions, collect
from shardlint.engine.runner import Status
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
    run = run_rule(rule, facts_of(FAMILIES[family]()))
    assert run.status in (Status.CLEAN, Status.NOTHING)
    assert run.status is not Status.NOTHING or rule is not ConfigShapeMismatch or family in ("vit", "mamba", "t5")


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
        ("vocab.json", '{"a": 0, "b": 6}', 7),
        ("vocab.json", '{"a": -4}', None),
        ("vocab.txt", "[PAD]\n[UNK]\nthe\n", 3),
        ("tokenizer.model", "\n\x03\n\x01a\n\x03\n\x01b\x12\x01x", 2),
        ("other.json", '{"a": 1}', None),
    ],
)
def test_sizes_of_tokenizers(tmp_path, name, content, size):
    (tmp_path / name).write_text(content)
    assert tokenizer_size(tmp_path) == size


def test_added_tokens_stand_beside_a_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    (tmp_path / "added_tokens.json").write_text('{"<x>": 5}')
    assert tokenizer_size(tmp_path) == 6


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "rubbish"),
        ("tokenizer.json", json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 39.5}]})),
        ("tokenizer.json", json.dumps({"model": {"vocab": {"a": 0, "b": 1}}})[:-4]),
        ("tokenizer.json", ""),
        ("vocab.json", '{"a": 1e99}'),
        ("vocab.json", '{"a": 4294967296}'),
        ("vocab.json", "[" * 5000),
        ("tokenizer.model", "\n\x09\n\x01a"),
        ("added_tokens.json", '["a"]'),
    ],
)
def test_d210_a_tokenizer_that_cannot_be_read_is_not_absent(tmp_path, name, content):
    model = llama()
    saved(model, tmp_path)
    (tmp_path / name).write_text(content)
    found = run_rule(ConfigShapeMismatch, facts_of(model, checkpoint=tmp_path))
    assert_not_evaluated(found, f"{name} cannot be read")


def test_d210_a_tokenizer_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    assert "tokenizer.json cannot be read" in tokenizer_size(tmp_path).unknown


class Loop(nn.Module):
    """A module of a training loop, which keeps settings of the run under the name of a configuration."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.config = {"learning_rate": 1e-3, "vocab_size": 7}


WRAPPERS = {
    "loop": Loop,
    "engine": lambda model: nn.ModuleDict({"module": model}),
    "data-parallel": nn.DataParallel,
    "sequence": lambda model: nn.Sequential(model, nn.Linear(2, 2)),
    "compiled": torch.compile,
    "adapter": lambda model: adapted(model, target_modules=["v_proj"]),
    "adapter-in-loop": lambda model: Loop(adapted(model, target_modules=["q_proj"])),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    ("setting", "value"), [("vocab_size", 99), ("num_attention_heads", 4), ("num_hidden_layers", 5)]
)
def test_d210_the_configuration_of_the_model_inside_a_wrapper(wrapper, setting, value):
    assert_rule_clean(run_rule(ConfigShapeMismatch, facts_of(WRAPPERS[wrapper](llama()))))
    model = llama()
    setattr(model.config, setting, value)
    found = run_rule(ConfigShapeMismatch, facts_of(WRAPPERS[wrapper](model)))
    assert len(found.findings) == 1


def test_d210_several_models_are_judged_each_by_its_own_configuration():
    student, teacher = llama(), qwen3_moe(vocab_size=48)
    both = nn.ModuleDict({"student": student, "teacher": teacher})
    model = facts_of(both).model
    assert (model.config, [part.fqn for part in model.part_configs]) == (None, ["student", "teacher"])
    assert_rule_clean(run_rule(ConfigShapeMismatch, facts_of(both)))
    teacher.config.vocab_size = 64
    assert_findings(run_rule(ConfigShapeMismatch, facts_of(both)), "teacher.model.embed_tokens.weight")


def test_d210_a_configuration_that_cannot_be_read():
    model = llama()
    model.config.to_dict = lambda: {}["gone"]
    assert_not_evaluated(run_rule(ConfigShapeMismatch, facts_of(model)), "its to_dict() raised KeyError")


def test_d210_numbers_of_the_object_count_before_those_of_its_dictionary():
    model = llama()
    told = model.config.to_dict()
    model.config.vocab_size = 99
    model.config.to_dict = lambda: told
    assert_findings(run_rule(ConfigShapeMismatch, facts_of(model)), "model.embed_tokens.weight")


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
def test_d208_every_list_of_an_adapter():
    model = adapted(llama(), target_modules=["q_proj"], modules_to_save=["lm_heads", "lm_head"])
    assert_findings(run_rule(AdapterTargetUnmatched, facts_of(model)), "lm_heads")
    model = adapted(llama(), target_modules=["q_proj"], layers_to_transform=[1, 7])
    assert_findings(run_rule(AdapterTargetUnmatched, facts_of(model)), "7")
    ranks = {"q_proj": 4, "layers.1.k_proj": 2}
    model = adapted(llama(), target_modules=["q_proj"], rank_pattern=ranks, alpha_pattern={"self_attn.q_proj": 8})
    assert_findings(run_rule(AdapterTargetUnmatched, facts_of(model)), "layers.1.k_proj")


def test_d208_each_parameter_of_fused_experts_counts_alone():
    targets = {"target_modules": ["q_proj"], "target_parameters": ["experts.down_proj", "experts.w1"]}
    facts = facts_of(adapted(qwen3_moe(), **targets))
    assert facts.model.adapters[0].matched_parameters == tuple(
        f"model.layers.{number}.mlp.experts.down_proj" for number in (0, 1)
    )
    assert_findings(run_rule(AdapterTargetUnmatched, facts), "experts.w1")
    targets = {"target_modules": ["q_proj"], "target_parameters": ["experts.down_proj", "experts.gate_up_proj"]}
    assert_rule_clean(run_rule(AdapterTargetUnmatched, facts_of(adapted(qwen3_moe(), **targets))))


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
