"""Two evaluations give the same findings in the same order, whatever the hash seed, and no rule changes facts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, given, settings

from facts.strategies import values_of
from shardlint import Facts
from shardlint.engine.runner import SelectedRule, Status, evaluate, to_selected
from shardlint.facts import FACTS_VERSION
from shardlint.facts.codec import decode_facts, encode_facts
from shardlint.plugins.manager import load_packs
from shardlint.testing import BASES, base_snapshot
from support.packs import sample_facts
from support.sample_rules import careful, finds, partly, selected, unordered

TESTS = Path(__file__).parents[1]
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def all_rules() -> list[SelectedRule]:
    """The built-in rules, and some of our own, so that there is always something to show."""
    samples = [("D201", careful), ("D202", finds("b", "a")), ("D203", partly)]
    own = [selected(code.replace("D", "OWN"), check, pack="own") for code, check in samples]
    return [*own, *(to_selected(rule) for rule in load_packs().rules)]


RULES = all_rules()


@settings(max_examples=10, phases=(Phase.generate,), suppress_health_check=SLOW, deadline=None)
@given(facts=values_of(Facts).map(lambda facts: evolve(facts, version=FACTS_VERSION)))
def test_no_rule_changes_facts_and_evaluating_twice_is_evaluating_once(facts: Facts) -> None:
    before = encode_facts(facts)
    first = evaluate(facts, RULES)
    assert encode_facts(facts) == before
    assert evaluate(facts, reversed(RULES)) == first
    assert evaluate(decode_facts(before, references=False), RULES) == first
    assert {outcome.pack for outcome in first.outcomes} >= {"own"}


@pytest.mark.parametrize("base", sorted(BASES))
def test_no_rule_crashes_or_changes_facts_on_a_sound_model(base: str) -> None:
    facts = base_snapshot(base)
    before = encode_facts(facts)
    evaluation = evaluate(facts, RULES)
    assert encode_facts(facts) == before
    assert [outcome.reason for outcome in evaluation.outcomes if outcome.status is Status.CRASHED] == []


def test_findings_do_not_depend_on_the_hash_seed() -> None:
    script = "from engine.test_determinism import report; print(report())"
    outputs = set()
    for seed in ("0", "1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert outputs.pop().count("in any order") == 9


def report() -> str:
    """Everything that an evaluation of the sample facts says."""
    evaluation = evaluate(sample_facts(), [selected("D204", unordered), *RULES])
    return "\n".join(map(repr, (*evaluation.findings, *((o.code, o.status, o.reason) for o in evaluation.outcomes))))
