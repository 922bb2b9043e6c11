"""What every rule must have: its code for ever, cases of each kind, an up-to-date page, a test on live objects."""

import importlib.util
import re
from pathlib import Path

import pytest

from shardlint.config.schema import all_keys
from shardlint.diagnostics import DIAGNOSTICS
from shardlint.testing import cases_by_rule, load_folder
from shardlint_rules.pack import shardlint_rules

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RULES = shardlint_rules()
LIGHT = [rule for rule in RULES if rule.cost.value == "light"]
CASES = cases_by_rule(load_folder(HERE))
# What is still to be written. Each code that goes makes the tests below stricter; none may come.
WITHOUT_CASES = frozenset({"D206", "D209", "D211", *(f"D3{number:02}" for number in range(1, 17))})
WITHOUT_LIVE_TEST = frozenset(
    {
        *("D107", "D206", "D209", "D211", "D309", "D314", "D315", "V003"),
    }
)


def registered():
    lines = (HERE / "codes.txt").read_text(encoding="ascii").splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_register_gives_no_code_and_no_name_twice():
    codes, names = zip(*(entry[:2] for entry in registered()), strict=True)
    assert len(set(codes)) == len(codes)
    assert len(set(names)) == len(names)
    assert {tuple(entry[2:]) for entry in registered()} <= {(), ("retired",)}


@pytest.mark.parametrize("rule", [*RULES, *DIAGNOSTICS.values()], ids=lambda rule: rule.code)
def test_every_code_is_registered_under_its_name(rule):
    assert [rule.code, rule.name] in registered()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_stands_in_the_module_of_its_name_and_phase(rule):
    _, folder, module = rule.__module__.split(".")
    assert module == rule.name.replace("-", "_")
    assert folder.partition("_")[0].upper() == rule.phase.value == rule.code[:2]


@pytest.mark.parametrize("rule", [rule for rule in LIGHT if rule.code not in WITHOUT_CASES], ids=lambda rule: rule.code)
def test_every_rule_has_a_clean_a_failing_and_a_guarding_case(rule):
    cases = CASES.get(rule.code, [])
    assert {case.kind for case in cases} == {"clean", "fail", "guard"}
    assert {case.path.stem for case in cases} == {rule.name.replace("-", "_")}


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.code not in WITHOUT_LIVE_TEST], ids=lambda rule: rule.code
)
def test_every_rule_is_tested_on_live_objects(rule):
    own = re.compile(rf"\b{rule.__name__}\b|\b{rule.code}\b|_{rule.code.lower()}_")
    tests = [path for path in ROOT.glob("tests/**/test_*.py") if path != Path(__file__)]
    assert any(own.search(path.read_text(encoding="utf-8")) for path in tests)


def test_related_settings_are_spelt_as_in_the_configuration():
    """What a report prints after `Config` can be typed into shardlint.yaml; other names are those of the model's."""
    known = {path for path, _ in all_keys()}
    tables = {path.partition(".")[0] for path in known if "." in path}
    named = {key for rule in RULES for key in rule.related_config if key.partition(".")[0] in tables and "." in key}
    assert "contract.lazy-buffers" in named
    assert named <= known


def test_every_rule_has_an_up_to_date_page():
    generate = generator()
    assert generate.drift(generate.pages()) == []


def test_drift_is_told_and_mended(tmp_path, capsys, monkeypatch):
    generate = generator()
    monkeypatch.setattr(generate, "PAGES", tmp_path / "rules")
    assert generate.main(["--check"]) == 1
    assert "docs/rules/index.md differs: run python docs/generate.py" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "rules" / "D999-gone.md").write_text("old")
    assert generate.main(["--check"]) == 1
    assert generate.main([]) == 0
    assert not (tmp_path / "rules" / "D999-gone.md").exists()
