"""Whatever fact a rule reads: when it is not known, the rule is not clean."""

import random
from pathlib import Path

import pytest

from shardlint import Cost
from shardlint.engine.runner import Status
from shardlint.testing import case_facts, load_folder, rules_by_code
from shardlint_rules.pack import shardlint_rules
from support.sweep import chosen, judged, reads, status_of, with_unknown

RULES = rules_by_code(shardlint_rules())
LIGHT = sorted({rule.code for rule in RULES.values() if rule.cost is Cost.LIGHT})
CASES: dict[str, list] = {}
for case in load_folder(Path(__file__).parent):
    CASES.setdefault(RULES[case.rule].code, []).append(case)

# What names a record. Who does not know it writes no record, and a finding cannot do without: a crash is no silence.
NAMES = {"by", "file", "fqn", "key", "keys", "name", "other_file", "owner", "path", "pattern", "source", "unit"}
# Fields that a rule may read without judging by them: of which rule, of which class, and why.
REASONS = {
    ("D104", "ContractFacts.source"): "it names the contract of a glob that matches nothing",
    ("D105", "ContractFacts.source"): "it names the contract of a broken tie in its message",
    ("D106", "ModelFacts.config_fqn"): "flags that agree do so wherever the module of their configuration stands",
    ("D210", "TensorFacts.fqn"): "it names the tensor of a size that differs",
    ("D514", "FileFacts.name"): "it names a file, which its kind tells to be no pickle",
    ("D601", "LiveParameter.fqn"): "it names the parameter whose tensors differ",
    ("D501", "ModelFacts.qualified_type"): "of an adapted model the class inside decides, not the one that wraps it",
    ("D610", "ModuleFacts.qualified_type"): "one trained parameter outside of norms is enough, whatever the others are",
    ("D610", "AdapterFacts.name"): "a label: which adapter is in use and which trains decide, and these are used",
    ("D708", "StateEvent.by"): "who did it decides between two producers only, and there it is used",
}


def swept(code, limit, seed=0):
    """The fields of which a rule does not notice that they are not known, with a case that shows it."""
    generator = random.Random(f"{code}{seed}")
    unnoticed = {}
    for case in CASES[code]:
        options = {name.replace("-", "_"): value for name, value in case.options.items()}
        rule = RULES[code](RULES[code].options_type(**options))
        facts = case_facts(case)
        status, places = reads(rule, facts)
        assert status is not Status.CRASHED, case
        for path, kind in chosen(places, generator, limit) if judged(status) else ():
            field = f"{kind}.{path[-1]}"
            came_to = status_of(rule, with_unknown(facts, path))
            crashed = came_to is Status.CRASHED and path[-1] not in NAMES
            if (came_to is Status.CLEAN or crashed) and (code, field) not in REASONS:
                unnoticed.setdefault(field, f"{came_to.value} in {case} with {path} unknown")
    return unnoticed


@pytest.mark.parametrize("code", LIGHT)
def test_what_is_not_known_is_never_clean(code):
    assert not swept(code, limit=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("code", LIGHT)
def test_every_place_of_every_case(code):
    assert not swept(code, limit=10**6)


def test_the_table_of_reasons_names_rules_and_fields():
    assert all(code in LIGHT and reason for (code, _), reason in REASONS.items())
