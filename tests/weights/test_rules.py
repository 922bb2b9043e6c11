"""V002 and V003 through the engine: findings, reasons for not being evaluated, and never a false green."""

from __future__ import annotations

import pytest
from attrs import evolve

from shardlint import Facts, LiveTarget
from shardlint.engine.runner import Evaluation, SelectedRule, Status, evaluate
from shardlint.facts import ContractFacts
from shardlint.report.model import untrusted
from shardlint.weights import Result
from shardlint.weights.compare.bits import bits_of
from shardlint_rules.v0_validation.replicas_differ import ReplicaOptions, ReplicasDiffer
from shardlint_rules.v0_validation.weights_differ import WeightOptions, WeightsDiffer
from support.loaded_models import loaded, mixtral_config, saved


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    from transformers import MixtralForCausalLM

    return saved(tmp_path_factory.mktemp("mixtral"), mixtral_config(), MixtralForCausalLM)


@pytest.fixture
def model(mixtral):
    from transformers import MixtralForCausalLM

    return loaded(mixtral, MixtralForCausalLM)


def run(rule, live: LiveTarget | None, facts: Facts | None = None) -> Evaluation:
    return evaluate(facts or Facts(), [SelectedRule(rule=rule, explicit=True)], live=live)


def test_a_right_model_is_clean(model, mixtral, tmp_path):
    seen = []
    live = LiveTarget(
        model=model, checkpoint=mixtral, progress=lambda *step: seen.append(step), reports=tmp_path, max_memory=1 << 30
    )
    found = run(WeightsDiffer(WeightOptions(replicas="full", threads=1)), live)
    assert (found.outcomes[0].status, found.findings) == (Status.CLEAN, ())
    assert seen[-1][0] == seen[-1][1] > 0
    assert (tmp_path / "tensors.csv").is_file()


def test_layers_that_are_wrong_in_one_way_are_one_finding(model, mixtral):
    for layer in model.model.layers:
        bits_of(layer.self_attn.q_proj.weight)[:] ^= 1
    model.model.norm.weight.data[2] = float("inf")
    found = run(WeightsDiffer(), LiveTarget(model=model, checkpoint=mixtral))
    assert found.outcomes[0].status is Status.FOUND
    subjects = {finding.subject: finding for finding in found.findings}
    assert set(subjects) == {"model.layers.{0..1}.self_attn.q_proj.weight", "model.norm.weight"}
    group = subjects["model.layers.{0..1}.self_attn.q_proj.weight"]
    assert group.evidence["load_dtype_mismatches"] == 2 * 32 * 32
    assert group.evidence["count"] == 2
    assert "2048 of 2048 elements in 2 tensors" in group.message
    assert group.key == "mismatch"


def test_what_is_not_looked_at_is_not_clean(model, mixtral, tmp_path):
    for live, reason in (
        (None, "facts alone"),
        (LiveTarget(checkpoint=mixtral), "none was built"),
        (LiveTarget(model=model), "none was given"),
        (LiveTarget(model=model, checkpoint=mixtral, sample=0.5), "only a sample"),
    ):
        (outcome,) = run(WeightsDiffer(), live).outcomes
        assert outcome.status is Status.NOT_EVALUATED
        assert reason in outcome.reason
    found = run(WeightsDiffer(), LiveTarget(model=model, checkpoint=tmp_path / "none"))
    assert found.outcomes[0].status is Status.FOUND
    assert found.findings[0].subject == "rank 0"


@pytest.mark.parametrize("explicit", [True, False])
def test_a_look_at_a_part_is_no_pass_however_the_rule_was_chosen(model, mixtral, explicit):
    live = LiveTarget(model=model, checkpoint=mixtral, sample=0.5)
    rules = [SelectedRule(rule=WeightsDiffer(), explicit=explicit)]
    outcomes = evaluate(Facts(), rules, heavy=True, live=live).outcomes
    assert outcomes[0].unfinished
    (why,) = untrusted(outcomes, ())
    assert "only a sample" in why
    whole = evaluate(Facts(), rules, heavy=True, live=LiveTarget(model=model, checkpoint=mixtral)).outcomes
    assert not whole[0].unfinished
    assert untrusted(whole, ()) == ()


def test_limits_of_the_job_hold_unless_the_rule_has_its_own(model, mixtral, monkeypatch):
    seen = []

    def verify(*_, **settings):
        seen.append((settings["replicas"], settings["rank_timeout"]))
        return Result(rows=())

    monkeypatch.setattr("shardlint.weights.verify", verify)
    live = LiveTarget(model=model, checkpoint=mixtral)
    run(WeightsDiffer(), live)
    run(WeightsDiffer(), evolve(live, rank_timeout=7.0, replicas="full"))
    run(WeightsDiffer(WeightOptions(rank_timeout=3.0, replicas="full")), evolve(live, rank_timeout=7.0))
    run(WeightsDiffer(WeightOptions(replicas="full")), evolve(live, replicas="digest"))
    assert seen == [("digest", 60.0), ("full", 7.0), ("full", 3.0), ("digest", 60.0)]


def test_a_sample_that_finds_something_says_both(model, mixtral):
    bits_of(model.lm_head.weight)[:] ^= 1
    found = run(WeightsDiffer(), LiveTarget(model=model, checkpoint=mixtral, sample=0.9))
    assert found.outcomes[0].status in (Status.FOUND, Status.NOT_EVALUATED)
    assert "sample" in found.outcomes[0].reason


def test_the_contract_excuses(model, mixtral):
    model.register_buffer("extra", model.model.norm.weight.detach().clone())
    live = LiveTarget(model=model, checkpoint=mixtral)
    assert [finding.key for finding in run(WeightsDiffer(), live).findings] == ["uncompared"]
    contract = ContractFacts(source="test", training_only_targets=("ext*",))
    assert run(WeightsDiffer(), live, Facts(contract=contract)).outcomes[0].status is Status.CLEAN


def test_replicas_need_ranks(model):
    (outcome,) = run(ReplicasDiffer(ReplicaOptions(threads=1)), LiveTarget(model=model)).outcomes
    assert (outcome.status, outcome.reason) == (Status.NOT_EVALUATED, "there is one rank, so there are no replicas")
    assert run(ReplicasDiffer(), LiveTarget()).outcomes[0].status is Status.NOT_EVALUATED
