"""The D4 rules on live models."""

from types import SimpleNamespace

import pytest
import torch

from shardlint.contract import Contract, Invariant
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.facts import ContractFacts, ProbeFacts
from shardlint.testing import assert_findings, assert_not_evaluated, assert_rule_clean, run_rule
from shardlint_rules.d4_materialization.materialization_invariant_failed import MaterializationInvariantFailed
from shardlint_rules.d4_materialization.meta_tensor_left import MetaTensorLeft
from shardlint_rules.d4_materialization.rebuildable_buffer_incomplete import RebuildableBufferIncomplete
from shardlint_rules.d4_materialization.tie_not_real import TieNotReal
from shardlint_rules.v0_validation.probe_unmatched import ProbeUnmatched
from support.models import bert, gpt2, llama, rewrite, saved, t5

from ..live import facts_of


@pytest.mark.live("D401")
def test_d401_a_parameter_and_a_buffer_left_on_meta_gate_validation():
    model = llama()
    model.model.norm.weight = torch.nn.Parameter(torch.empty(16, device="meta"))
    model.model.rotary_emb.inv_freq = torch.empty(4, device="meta")
    contract = ContractFacts(source="acme", probes=(ProbeFacts(glob="nothing.*"),))
    facts = facts_of(model, contract=contract)
    assert_findings(run_rule(MetaTensorLeft, facts), "model.norm.weight", "model.rotary_emb.inv_freq")
    evaluation = evaluate(facts, [SelectedRule(rule=rule()) for rule in (ProbeUnmatched, MetaTensorLeft)])
    assert {item.code: item.status for item in evaluation.outcomes}["V001"] is Status.BLOCKED


def test_d401_a_tied_model_wholly_on_meta():
    with torch.device("meta"):
        model = llama(tie_word_embeddings=True)
    found = run_rule(MetaTensorLeft, facts_of(model))
    assert len(found.findings) == len(set(model.parameters())) + len(set(model.buffers()))


@pytest.mark.live("D402")
def test_d402_the_recipe_of_a_module():
    model = llama()
    rotary = model.model.rotary_emb
    recipe = SimpleNamespace(source="original_inv_freq", factory=None)
    rotary.__dict__["_hp_rebuildable_buffer_specs"] = {"inv_freq": recipe}
    assert_rule_clean(run_rule(RebuildableBufferIncomplete, facts_of(model)))
    rotary._non_persistent_buffers_set.discard("inv_freq")
    recipe.source = None
    found = run_rule(RebuildableBufferIncomplete, facts_of(model))
    assert_findings(found, "model.rotary_emb.inv_freq")
    assert found.findings[0].evidence["reasons"] == (
        "became persistent",
        "has a recipe with neither source nor factory",
    )


@pytest.mark.live("D403")
def test_d403_a_checker_that_asks_the_live_model():
    def checker(model):
        return {"layers": len(model.model.layers)} if len(model.model.layers) != 2 else None

    declared = Contract(invariants=(Invariant(name="layers", checker=checker, phase="materialization"),))
    assert_rule_clean(run_rule(MaterializationInvariantFailed, facts_of(llama(), declared=declared)))
    found = run_rule(MaterializationInvariantFailed, facts_of(llama(num_hidden_layers=3), declared=declared))
    assert_findings(found, "layers")
    assert found.findings[0].evidence == {"layers": 3}


def test_d406_to_empty_unties():
    for build in (lambda: llama(tie_word_embeddings=True), gpt2):
        with torch.device("meta"):
            model = build()
        assert_rule_clean(run_rule(TieNotReal, facts_of(model)))
        model.to_empty(device="cpu")
        assert_findings(run_rule(TieNotReal, facts_of(model)), "lm_head.weight")
        model.tie_weights()
        assert_rule_clean(run_rule(TieNotReal, facts_of(model)))


@pytest.mark.live("D406")
def test_d406_a_replaced_embedding_among_several_ties():
    model = t5()
    assert_rule_clean(run_rule(TieNotReal, facts_of(model)))
    model.encoder.embed_tokens = torch.nn.Embedding(32, 16)
    assert_findings(run_rule(TieNotReal, facts_of(model)), "encoder.embed_tokens.weight")


def test_d406_equal_values_are_not_enough():
    model = llama(tie_word_embeddings=True)
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    assert_findings(run_rule(TieNotReal, facts_of(model)), "lm_head.weight")
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach())
    assert_rule_clean(run_rule(TieNotReal, facts_of(model)))


def test_d406_a_pair_that_the_loader_keeps_apart(tmp_path):
    model = llama(tie_word_embeddings=True)
    model.lm_head.weight = torch.nn.Parameter(torch.ones(32, 16))
    model.config.tie_word_embeddings = False
    saved(model, tmp_path)
    rewrite(tmp_path, lambda tensors: None)
    loaded = type(model).from_pretrained(tmp_path, tie_word_embeddings=True)
    assert loaded.lm_head.weight is not loaded.model.embed_tokens.weight
    assert run_rule(TieNotReal, facts_of(loaded, tmp_path)).findings == ()


def test_d406_meta_ends_that_are_apart_cannot_be_compared():
    with torch.device("meta"):
        model = llama(tie_word_embeddings=True)
        model.lm_head.weight = torch.nn.Parameter(torch.empty(32, 16))
    assert_not_evaluated(run_rule(TieNotReal, facts_of(model)), "lm_head.weight")


def test_d406_no_tie_declared():
    assert run_rule(TieNotReal, facts_of(bert())).judged == 0
