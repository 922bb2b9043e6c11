"""The D1 rules on live models."""

import pytest
import torch
from attrs import evolve

from shardlint.contract import Contract, Invariant, Recipe, Replacement
from shardlint.facts import ContractFacts, Environment, FrozenDict
from shardlint.testing import assert_findings, assert_not_evaluated, assert_rule_clean, run_rule
from shardlint_rules.d1_declarations.base_prefix_dangling import BasePrefixDangling
from shardlint_rules.d1_declarations.contract_invalid import ContractInvalid
from shardlint_rules.d1_declarations.declaration_matches_nothing import DeclarationMatchesNothing
from shardlint_rules.d1_declarations.invariant_phase_unsupported import InvariantPhaseUnsupported
from shardlint_rules.d1_declarations.replacement_unmatched import ReplacementUnmatched
from shardlint_rules.d1_declarations.tie_declaration_broken import TieDeclarationBroken
from shardlint_rules.d1_declarations.tie_flags_disagree import TieFlagsDisagree
from support.models import llama, rewrite, saved

from ..live import facts_of


@pytest.mark.live("D101")
def test_d101_an_invariant_of_a_phase_that_nobody_evaluates():
    declared = Contract(invariants=(Invariant(name="rope", checker=lambda model: None, phase="deployment"),))
    assert_findings(run_rule(InvariantPhaseUnsupported, facts_of(llama(), declared=declared)), "rope")
    sound = Contract(invariants=(Invariant(name="rope", checker=lambda model: None),))
    assert_rule_clean(run_rule(InvariantPhaseUnsupported, facts_of(llama(), declared=sound)))


@pytest.mark.live("D102")
def test_d102_a_recipe_that_changes_the_model():
    model = llama()

    def careless(model, name):
        model.model.rotary_emb.inv_freq.zero_()
        return model.model.rotary_emb.inv_freq.clone()

    declared = Contract(recipes=(Recipe(buffer="**.inv_freq", recipe=careless),))
    found = run_rule(ContractInvalid, facts_of(model, declared=declared))
    assert found.findings
    assert_rule_clean(run_rule(ContractInvalid, facts_of(llama(), declared=Contract())))


@pytest.mark.live("D103")
def test_d103_a_replacement_that_was_not_made():
    lost, made = Replacement(pattern="model.layers.*.mlp", replacement="Fused*"), Replacement(pattern="model.norm")
    facts = facts_of(llama(), declared=Contract(replacements=(lost, made)))
    assert_findings(run_rule(ReplacementUnmatched, facts), "model.layers.*.mlp")


@pytest.mark.live("D104")
def test_d104_a_class_of_ones_own_and_a_contract():
    class Net(torch.nn.Module):
        _keep_in_fp32_modules = ("norm", "router")

        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)

    contract = ContractFacts(source="acme", training_only_targets=("norm.*", "value_head.*"))
    assert_findings(run_rule(DeclarationMatchesNothing, facts_of(Net(), contract=contract)), "router", "value_head.*")


@pytest.mark.live("D105")
def test_d105_a_mapping_that_names_no_parameter():
    model = llama(tie_word_embeddings=True)
    type_before = type(model)._tied_weights_keys
    assert_rule_clean(run_rule(TieDeclarationBroken, facts_of(model)))
    model._tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}
    assert_findings(run_rule(TieDeclarationBroken, facts_of(model)), "lm_head.weight")
    assert type(model)._tied_weights_keys is type_before


def test_d105_the_form_of_an_older_library():
    model = llama(tie_word_embeddings=True)
    model._tied_weights_keys = ["lm_head.weight"]
    facts = facts_of(model)
    assert_findings(run_rule(TieDeclarationBroken, facts), "<root>")
    unknown = evolve(facts, environment=Environment())
    assert_not_evaluated(run_rule(TieDeclarationBroken, unknown), "declares ties as list")
    old = evolve(facts, environment=Environment(versions=FrozenDict(transformers="4.57.1")))
    assert_rule_clean(run_rule(TieDeclarationBroken, old))


@pytest.mark.live("D106")
def test_d106_nested_flags(tmp_path):
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    from support.models import SIZES

    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    text = LlamaConfig(**SIZES, tie_word_embeddings=False)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=3, tie_word_embeddings=False)
    model = LlavaForConditionalGeneration(config)
    saved(model, tmp_path)

    def disagreeing(model, info=None):
        model.config.text_config.tie_word_embeddings = True
        return facts_of(model, tmp_path, info)

    assert_rule_clean(run_rule(TieFlagsDisagree, disagreeing(model)))
    without_plan = evolve(disagreeing(model), plan=None)
    assert_not_evaluated(run_rule(TieFlagsDisagree, without_plan), "a conversion maps")
    loaded, info = LlavaForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert_rule_clean(run_rule(TieFlagsDisagree, disagreeing(loaded, info)))
    rewrite(tmp_path, lambda tensors: [tensors.pop(key) for key in list(tensors) if key.endswith("lm_head.weight")])
    broken, info = LlavaForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert_findings(run_rule(TieFlagsDisagree, disagreeing(broken, info)), "lm_head.weight")


@pytest.mark.live("D107")
def test_d107_keys_of_a_base_model_whose_prefix_leads_nowhere(tmp_path, monkeypatch):
    model = llama()
    saved(model.model, tmp_path)
    assert_rule_clean(run_rule(BasePrefixDangling, facts_of(model, tmp_path)))
    monkeypatch.setattr(type(model), "base_model_prefix", "backbone")
    (finding,) = run_rule(BasePrefixDangling, facts_of(model, tmp_path)).findings
    assert (finding.evidence["prefix"], finding.evidence["attribute"]) == ("backbone", "model")
