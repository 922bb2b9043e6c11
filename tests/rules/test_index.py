"""What every rule must have: its code for ever, cases of each kind, an up-to-date page, a test on live objects."""

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from shardlint.config.schema import all_keys
from shardlint.diagnostics import DIAGNOSTICS
from shardlint.engine.runner import matches_selector
from shardlint.testing import cases_by_rule, load_folder
from shardlint_rules._files import READ_FILES, WHOLE_CHECKPOINT, FileProblemRule
from shardlint_rules.d5_checkpoint.header_corrupt import HeaderCorrupt
from shardlint_rules.pack import shardlint_rules

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RULES = shardlint_rules()
LIGHT = [rule for rule in RULES if rule.cost.value == "light"]
CASES = cases_by_rule(load_folder(HERE))
# Rules whose live tests stand elsewhere or run in other processes, where no mark is held to what they find.
# No code may come to this list: a new rule has a test marked `live`.
NAMED_ELSEWHERE = frozenset(
    {
        *("D302", "D303", "D305", "D306", "D307", "D308", "D310", "D311", "D313", "D314", "D404", "D405"),
        *("D407", "D507", "D508", "D509", "D510", "D511", "D512", "D513", "D514", "D516", "D517", "D518"),
        *("D519", "D520", "D521", "D522", "D523", "D524", "D525", "D609", "D710", "V002", "V003", "V004"),
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


@pytest.mark.parametrize("rule", LIGHT, ids=lambda rule: rule.code)
def test_every_rule_has_a_clean_a_failing_and_a_guarding_case(rule):
    cases = CASES.get(rule.code, [])
    assert {case.kind for case in cases} == {"clean", "fail", "guard"}
    assert {case.path.stem for case in cases} == {rule.name.replace("-", "_")}


def marked_live(tree):
    """The codes in the marks `live` of a test file: of each the test fails when the rule finds nothing in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.live":
            yield from (argument.value for argument in node.args)


def used(tree):
    """The names and the strings in the code of a test file: comments and names of functions do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\b[DV][0-9]{3}\b", node.value)


def test_every_rule_is_tested_on_live_objects():
    trees = [ast.parse(path.read_text()) for path in ROOT.glob("tests/**/test_*.py") if path != Path(__file__)]
    marked = {code for tree in trees for code in marked_live(tree)}
    codes = {rule.code for rule in RULES}
    assert marked == codes - NAMED_ELSEWHERE
    words = {word for tree in trees for word in used(tree)}
    assert {rule.code for rule in RULES if {rule.code, rule.__name__} & words} >= NAMED_ELSEWHERE


def test_every_rule_about_a_checkpoint_says_whether_unread_files_block_it():
    """What judges the whole checkpoint cannot do so while a file is unread; what compares what was read can."""
    for rule in RULES:
        source = inspect.getsource(inspect.getmodule(rule))
        about = re.search(r"facts\.(checkpoint|plan)\b|Section\.(CHECKPOINT|PLAN)\b|live\.checkpoint\b", source)
        if rule.phase.value in ("D5", "V0") and about and not issubclass(rule, FileProblemRule):
            assert len({WHOLE_CHECKPOINT, READ_FILES} & set(rule.tags)) == 1, rule.code


def test_an_unread_file_blocks_the_rules_that_say_so():
    blocked = {rule.code for rule in RULES if matches_selector(rule, *HeaderCorrupt.blocks)}
    assert blocked == {rule.code for rule in RULES if WHOLE_CHECKPOINT in rule.tags}
    assert {"D501", "D522", "V002"} <= blocked


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
