"""The parts of a report that come straight from the facts."""

from attrs import evolve

from shardlint.analysis.coverage import coverage_of
from shardlint.facts import CollectionProblem, Facts, FrozenDict
from shardlint.plugins.registry import Registry
from shardlint.report.from_facts import collection_findings, coverage_mapping, metadata_of
from shardlint.testing import base_snapshot


def test_the_coverage_is_that_of_the_rules():
    facts = base_snapshot("llama")
    assert coverage_mapping(facts) == coverage_of(facts).as_mapping()
    assert coverage_mapping(facts)["status"] == "COMPLETE"


def test_without_model_and_checkpoint_there_is_no_coverage():
    assert coverage_mapping(Facts()) is None


def test_a_model_alone_is_not_loaded_and_no_reason_to_ask():
    mapping = coverage_mapping(evolve(base_snapshot("llama"), checkpoint=None))
    assert mapping["status"] == "NOT_LOADED"
    assert "reason" not in mapping


def test_a_checkpoint_that_cannot_be_compared_says_why():
    facts = base_snapshot("llama")
    mapping = coverage_mapping(evolve(facts, model=None, absent=FrozenDict({"plan": "config.json is missing"})))
    assert (mapping["status"], mapping["basis"]) == ("NOT_LOADED", "plan")
    assert mapping["reason"].startswith("config.json is missing; ")


def test_metadata_names_model_checkpoint_and_contract():
    metadata = metadata_of(base_snapshot("contract"), Registry())
    assert metadata["model"]["class"].endswith("LlamaForCausalLM")
    assert metadata["checkpoint"]["tensors"] > 0
    assert metadata["contract"]["replaces"] is None
    assert metadata_of(Facts(), Registry())["model"] is None


def test_a_collector_that_failed_is_a_finding():
    problem = CollectionProblem(collector="acme", section="model", error_type="ValueError", error="no", pack="acme")
    (finding,) = collection_findings(Facts(problems=(problem,)))
    assert (finding.code, finding.subject) == ("SL002", "acme")
    assert "ValueError: no" in finding.message
