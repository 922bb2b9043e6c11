from pathlib import Path

import pytest
from attrs import frozen

from shardlint import Phase, Rule, Severity
from shardlint.config import ConfigError, load_settings, rule_options
from shardlint.engine.selection import select_rules
from shardlint.plugins.registry import RegisteredRule


@frozen(kw_only=True)
class Options:
    max_share: float = 0.5
    names: tuple[str, ...] = ()


class WithOptions(Rule):
    """
    Summary.

    ## What it does
    x
    ## Why it is unsafe
    x
    ## What to do
    x
    """

    code = "D398"
    name = "with-options"
    phase = Phase.D3
    severity = Severity.ERROR
    options_type = Options

    def check(self, facts):
        return ()


RULES = (RegisteredRule(rule_class=WithOptions, pack="shardlint"),)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(text):
    Path("shardlint.yaml").write_text(text)
    return load_settings(Path.cwd())


@pytest.mark.parametrize("rule", ["D398", "with-options"])
def test_options_reach_the_rule(rule):
    found = settings(f"lint: {{options: {{{rule}: {{max-share: 0.25, names: [a, b]}}}}}}\n")
    (item,) = select_rules(RULES, found.layers).to_run(rule_options(found, RULES))
    assert item.rule.options == Options(max_share=0.25, names=("a", "b"))


def test_without_options_the_defaults_hold():
    found = settings("version: 1\n")
    (item,) = select_rules(RULES, found.layers).to_run(rule_options(found, RULES))
    assert item.rule.options == Options()


def test_every_wrong_option_is_told_with_its_place():
    found = settings(
        "lint:\n  options:\n    with-optoins: {a: 1}\n    D398: {max-shar: 1, names: 3}\n    with-options: {}\n"
    )
    with pytest.raises(ConfigError) as error:
        rule_options(found, RULES)
    lines = [str(problem) for problem in error.value.problems]
    assert len(lines) == 4
    assert lines[0] == (
        "shardlint.yaml:3:19: lint.options.with-optoins: expected the code or name of a loaded rule, got 'with-optoins'"
        " (did you mean 'with-options'?)"
    )
    assert lines[1].startswith("shardlint.yaml:4:22: lint.options.D398.max-shar: expected the options of D398")
    assert "did you mean 'max-share'?" in lines[1]
    assert lines[2].startswith("shardlint.yaml:4:32: lint.options.D398.names: expected")
    assert lines[3].endswith("expected the options of a rule once, got them by code and by name")
    assert error.value.problems[0].source_line == "    with-optoins: {a: 1}"


def test_an_option_given_twice_is_told():
    found = settings("lint: {options: {D398: {max-share: 1, max_share: 1}}}\n")
    with pytest.raises(ConfigError, match="twice"):
        rule_options(found, RULES)
