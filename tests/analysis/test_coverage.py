"""The coverage of a run: which evidence decides, judged once, and one reason where nothing can be compared."""

import gc
import weakref

import pytest
from attrs import evolve

from shardlint.analysis.coverage import (
    CoverageStatus,
    SourceClass,
    TargetClass,
    coverage_of,
    iter_unexplained,
    planned_coverage,
    stored_coverage,
)
from shardlint.facts import ContractFacts, FrozenDict
from shardlint.rule import NotEvaluated
from shardlint.testing import base_snapshot

HEAD = "lm_head.weight"


def without_entry(facts, key):
    entries = tuple(entry for entry in facts.checkpoint.entries if entry.key != key)
    return evolve(facts, checkpoint=evolve(facts.checkpoint, entries=entries))


@pytest.mark.parametrize(
    ("base", "basis"), [("llama-loaded", "load-report"), ("llama-planned", "plan"), ("llama", "headers")]
)
def test_the_strongest_evidence_decides(base, basis):
    coverage = coverage_of(base_snapshot(base))
    assert (coverage.status, coverage.basis) == (CoverageStatus.COMPLETE, basis)


def test_it_is_judged_once_for_the_same_facts_and_forgotten_with_them():
    facts = base_snapshot("llama")
    first = coverage_of(facts)
    assert coverage_of(facts) is first
    other = without_entry(facts, HEAD)
    assert coverage_of(other).missing == (HEAD,)
    assert coverage_of(facts) is first
    gone = weakref.ref(first)
    del first, facts, other
    gc.collect()
    assert gone() is None


def test_what_is_missing_and_what_excuses_it():
    facts = without_entry(base_snapshot("llama"), HEAD)
    assert list(iter_unexplained(coverage_of(facts))) == [(HEAD, TargetClass.UNSUPPORTED_MISSING_TARGET)]
    excused = evolve(facts, contract=ContractFacts(source="test", training_only_targets=("lm_head.*",)))
    assert coverage_of(excused).status is CoverageStatus.COMPLETE
    assert coverage_of(excused).targets[HEAD] is TargetClass.TRAINING_ONLY_INITIALIZATION


def test_an_unexpected_key():
    facts = base_snapshot("llama")
    entry = evolve(facts.checkpoint.entries[0], key="model.mystery.weight")
    more = evolve(facts, checkpoint=evolve(facts.checkpoint, entries=(*facts.checkpoint.entries, entry)))
    assert coverage_of(more).unexpected == ("model.mystery.weight",)
    assert coverage_of(more).counts()["sources"] == {SourceClass.UNSUPPORTED_ARCHITECTURAL_MISMATCH.value: 1}


def test_nothing_to_compare_is_never_complete():
    facts = base_snapshot("plain")
    assert coverage_of(evolve(facts, checkpoint=None)).status is CoverageStatus.NOT_LOADED
    llama = base_snapshot("llama")
    quantised = evolve(llama.model, config=FrozenDict({**llama.model.config, "quantization_config": {"bits": 4}}))
    absent = FrozenDict({"plan": "the class is not known"})
    coverage = coverage_of(evolve(llama, model=quantised, absent=absent))
    assert coverage.status is CoverageStatus.NOT_LOADED
    assert coverage.reason.startswith("the class is not known; the checkpoint is quantised")
    modelless = coverage_of(evolve(llama, model=None, absent=FrozenDict({"model": "no model was given"})))
    assert (modelless.status, modelless.reason) == (CoverageStatus.NOT_LOADED, "no model was given")


def test_each_evidence_alone_says_what_it_lacks():
    facts = base_snapshot("llama")
    with pytest.raises(NotEvaluated, match="no plan facts"):
        planned_coverage(facts)
    with pytest.raises(NotEvaluated, match="no model or no checkpoint"):
        stored_coverage(evolve(facts, model=None))
    planned = base_snapshot("llama-planned")
    with pytest.raises(NotEvaluated, match=r"no header could be read of a\.safetensors"):
        planned_coverage(evolve(planned, plan=evolve(planned.plan, unread=("a.safetensors",))))
