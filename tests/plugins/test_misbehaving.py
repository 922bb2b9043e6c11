"""Every pack in `tests/packs/broken` harms nobody but itself, and is named with version and place."""

import re
from pathlib import Path

import pytest

from shardlint import Finding
from shardlint.engine.runner import Evaluation, Status, evaluate, to_selected
from shardlint.plugins.manager import load_packs
from shardlint.plugins.registry import PackState, Registry
from shardlint.report.model import Verdict, untrusted, verdict_of
from support.packs import BROKEN, install, sample_facts

FAILS_TO_LOAD = {
    "bad_collector": r"a collector needs a name, a section \(one of .*\) and a method collect\(\)",
    "bad_reporters": r"shardlint_reporters\(\) must return a mapping of format names to callables, it returned list",
    "bad_rule_definition": r"importing it failed: RuleDefinitionError: rule bad_rule_definition.Undefined: name",
    "builtin_code": r"the code of rule D201 builtin-code must be its prefix BLT and three digits",
    "empty_prefix": r"PackInfo.prefix must be 2 to 8 capitals other than SL and ALL, got ''",
    "engine_phase": r"rule ENG001 engine-phase is of phase ENGINE, which is for shardlint itself",
    "exits_on_import": r"importing it failed: SystemExit: 3",
    "foreign_code": r"the code of rule OTH001 foreign-code must be its prefix FRN and three digits",
    "hook_raises": r"shardlint_rules\(\) failed: LookupError: where did I put them\?",
    "hook_is_a_object": r"shardlint_contracts is no function but an object of type Answer; a hook is a function",
    "hook_is_a_partial": r"shardlint_contracts is no function but an object of type partial; a hook is a function",
    "hook_is_a_value": r"shardlint_contracts is no function but an object of type Contract; a hook is a function",
    "hook_returns_none": r"shardlint_rules\(\) must return Rule classes, it returned NoneType",
    "hook_returns_rubbish": r"shardlint_rules\(\) must return subclasses of shardlint.Rule, it returned <class 'dict'>",
    "hook_stops_midway": r"shardlint_rules\(\) failed: OSError: the rest is on a disk that is gone",
    "import_error": r"importing it failed: ModuleNotFoundError: No module named 'a_module_that_nobody_has'",
    "misspelt_hook": r"unknown hook 'shardlint_rule' \(did you mean 'shardlint_rules'\?\)",
    "newer_api": r"it needs plugin API 99; shardlint \S+ offers 1. Upgrade shardlint, or install an older "
    r"shardlint-newer_api \(<2.7.1\)",
    "no_info": r"it implements no shardlint_pack\(\)",
    "older_api": r"it needs plugin API 0; shardlint \S+ offers 1. Upgrade shardlint-older_api, or install an older",
    "other_name": r"its entry point calls it 'other_name' and PackInfo.name 'somebody_else'",
    "reserved_prefix": r"PackInfo.prefix must be 2 to 8 capitals other than SL and ALL, got 'SL'",
    "syntax_error": r"importing it failed: SyntaxError",
    "unmarked_hook": r"shardlint_rules\(\) is not marked with @shardlint.hookimpl, so it is not a hook",
    "wrong_argument": r"shardlint_rules\(\) has no argument 'context'; it takes none",
    "wrong_info": r"shardlint_pack\(\) must return a shardlint.PackInfo, it returned dict",
}
CRASHES = {
    "constructor_raises": r"KeyError: 'made of nothing'",
    "error_without_text": r"MuteError: \(its text cannot be read: SystemExit\)",
    "rule_bad_field": r"TypeError: .*a finding's subject must be str, got 3",
    "rule_changes_facts": r"it changed the facts, which are frozen; its findings are not used",
    "rule_empties_facts": r"it changed the facts, which are frozen; its findings are not used",
    "rule_exits": r"SystemExit: 0",
    "rule_forges": r"it must yield findings of FOR001 rule-forges, and yielded one of HEA001 rule-forges",
    "rule_never_ends": r"it yielded more than 100 findings and was stopped",
    "rule_raises": r"ZeroDivisionError: all is lost",
    "rule_raises_base": r"Stop: enough",
    "rule_recurses": r"RecursionError: maximum recursion depth exceeded",
    "rule_returns_number": r"it must return or yield findings, and returned int",
    "rule_yields_rubbish": r"it must yield Finding objects, and yielded str",
}
TWINS = {"twin_a", "twin_b"}
FOUND_BEFORE_THE_CRASH = {"rule_raises": 1, "rule_yields_rubbish": 1, "rule_never_ends": 50}


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardlint.engine.judging.FINDING_LIMIT", 50)
    monkeypatch.setattr("shardlint.engine.judging.COUNT_LIMIT", 100)


def run(registry: Registry) -> Evaluation:
    return evaluate(sample_facts(), [to_selected(rule) for rule in registry.rules])


def healthy(evaluation: Evaluation) -> list[Finding]:
    """What the control found, and the built-in rules."""
    return [finding for finding in evaluation.findings if finding.code == "HEA001" or finding.code[:1] in "DV"]


def frame_of(file: Path) -> str:
    lines = file.read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith("# here")]
    assert len(marked) == 1, f"{file} needs one line that ends with '# here'"
    return f"{file}:{marked[0]} "


def exit_status(registry: Registry, evaluation: Evaluation) -> int:
    findings = (*registry.diagnostics, *evaluation.findings)
    return verdict_of(findings, untrusted(evaluation.outcomes, findings), None).exit_status


def test_every_broken_pack_is_tested() -> None:
    assert {file.stem for file in BROKEN.glob("*.py")} - {"healthy"} == {*FAILS_TO_LOAD, *CRASHES, *TWINS}


def test_the_control_alone_is_trusted(site: Path) -> None:
    install(site, "healthy")
    registry = load_packs()
    evaluation = run(registry)
    assert registry.diagnostics == ()
    assert sum(finding.code == "HEA001" for finding in healthy(evaluation)) == 3
    assert exit_status(registry, evaluation) == Verdict.PASS.exit_status


@pytest.mark.parametrize("name", sorted(FAILS_TO_LOAD))
def test_pack_that_does_not_load(site: Path, name: str) -> None:
    install(site, "healthy")
    expected = healthy(run(load_packs()))
    file = install(site, name, version="2.7.1")
    registry = load_packs()
    evaluation = run(registry)

    (failure,) = registry.diagnostics
    assert (failure.code, failure.name, failure.subject) == ("SL002", "pack-failed", name)
    assert f"pack {name} (shardlint-{name} 2.7.1): " in failure.message
    assert re.search(FAILS_TO_LOAD[name], failure.message), failure.message
    assert "\n" not in failure.message
    assert failure.evidence["pack_version"] == "2.7.1"
    assert failure.evidence["issues_url"] == f"https://broken.example/{name}/issues"
    if name != "no_info":
        assert str(failure.evidence["frame"]).startswith(frame_of(file))

    status = next(pack for pack in registry.packs if pack.name == name)
    assert status.status is PackState.FAILED
    assert status.error == failure.message
    assert healthy(evaluation) == expected
    assert exit_status(registry, evaluation) == 2


def test_nothing_of_a_hook_that_stopped_midway_is_kept(site: Path) -> None:
    install(site, "hook_stops_midway")
    assert load_packs().rule("MID001") is None


def test_sound_hooks_of_a_pack_with_a_broken_one_are_kept(site: Path) -> None:
    install(site, "bad_collector")
    registry = load_packs()
    assert registry.rule("SOU001") is not None
    assert registry.collectors == ()


@pytest.mark.parametrize("name", sorted(CRASHES))
def test_rule_that_crashes(site: Path, name: str) -> None:
    install(site, "healthy")
    expected = healthy(run(load_packs()))
    file = install(site, name, version="2.7.1")
    registry = load_packs()
    evaluation = run(registry)

    assert registry.diagnostics == ()
    (crash,) = [finding for finding in evaluation.findings if finding.code == "SL001"]
    assert f"of pack {name} (shardlint-{name} 2.7.1) crashed: " in crash.message
    assert re.search(CRASHES[name], crash.message), crash.message
    assert "\n" not in crash.message
    assert crash.evidence["pack_version"] == "2.7.1"
    assert str(crash.evidence["frame"]).startswith(frame_of(file))

    (outcome,) = [outcome for outcome in evaluation.outcomes if outcome.pack == name]
    assert outcome.status is Status.CRASHED
    assert outcome.code == crash.subject
    assert re.search(CRASHES[name], outcome.reason)
    assert outcome.findings == FOUND_BEFORE_THE_CRASH.get(name, 0)
    assert outcome.partial is (name in FOUND_BEFORE_THE_CRASH)
    assert healthy(evaluation) == expected
    assert exit_status(registry, evaluation) == 2


@pytest.mark.parametrize("name", ["rule_changes_facts", "rule_empties_facts"])
def test_changed_facts_are_restored_for_everybody(site: Path, name: str) -> None:
    install(site, name)
    facts = sample_facts()
    model = facts.model
    evaluate(facts, [to_selected(rule) for rule in load_packs().rules])
    assert facts == sample_facts()
    assert facts.model is not None
    assert facts.model is not model or name == "rule_empties_facts"


def test_codes_and_names_claimed_twice_are_refused(site: Path) -> None:
    for name in ("healthy", "twin_a", "twin_b"):
        install(site, name)
    registry = load_packs()
    evaluation = run(registry)
    code, name = registry.diagnostics
    assert (code.code, code.subject, name.code, name.subject) == ("SL008", "TWN001", "SL008", "twin")
    for finding in (code, name):
        assert "twin_a (shardlint-twin_a 1.0) and twin_b (shardlint-twin_b 1.0)" in finding.message
    assert registry.rule("TWN001") is None
    assert {finding.code for finding in evaluation.findings} >= {"HEA001", "TWN002", "TWN003"}
    assert exit_status(registry, evaluation) == 2


def test_all_of_them_at_once(site: Path) -> None:
    install(site, "healthy")
    expected = healthy(run(load_packs()))
    for name in sorted({*FAILS_TO_LOAD, *CRASHES, *TWINS}):
        install(site, name)
    registry = load_packs()
    evaluation = run(registry)
    failed = {finding.subject for finding in registry.diagnostics if finding.code == "SL002"}
    crashed = {outcome.pack for outcome in evaluation.outcomes if outcome.status is Status.CRASHED}
    assert failed == set(FAILS_TO_LOAD)
    assert crashed == set(CRASHES)
    assert healthy(evaluation) == expected
