"""What the Python API says of arguments that are something else than it expects."""

import pytest
import torch
from torch import nn

import shardlint
from shardlint.engine.selection import SelectionError
from shardlint.integrations.pytest import assert_clean


def model():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checkpoint": 3}, "checkpoint: expected the path of a folder or file, got 3 of type int"),
        ({"optimizer": "adam"}, "optimizer: expected an optimizer, or several in a list or mapping, got 'adam'"),
        ({"optimizer": torch.optim.Adam}, "optimizer: expected an optimizer, got the class Adam; pass an instance"),
        ({"data": 5}, "data: expected a shardlint.contract.DataPipeline, got 5 of type int"),
        ({"config": 5}, "config: expected the path of a file, settings, False for none or None"),
        ({"config": True}, "for the nearest file, got bool"),
        ({"config": {"lint": {"select": ["D4"]}}}, "got dict; settings are written in a file"),
    ],
)
def test_wrong_kinds_are_type_errors_that_name_the_argument(arguments, message):
    for function in (shardlint.lint, shardlint.snapshot):
        with pytest.raises(TypeError) as error:
            function(model(), **{"config": False} | arguments)
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"select": 4}, "select: expected selectors such as 'D4' or 'tie-not-real', got 4 of type int"),
        ({"extend_select": ["D4", None]}, "extend_select: expected selectors"),
        ({"ignore": [4]}, "ignore: expected selectors"),
        ({"severity": "D401=error"}, "severity: expected a mapping such as {'D401': 'warning'}, got 'D401=error'"),
        ({"rank_timeout": "long"}, "rank_timeout: expected seconds as a number, got 'long' of type str"),
    ],
)
def test_wrong_choices_are_type_errors_that_name_the_argument(arguments, message):
    with pytest.raises(TypeError) as error:
        shardlint.lint(model(), config=False, **arguments)
    assert message in str(error.value)


def test_a_negative_time_is_a_value_error():
    with pytest.raises(ValueError, match="rank_timeout: expected 0 or more seconds, got -1"):
        shardlint.lint(model(), config=False, rank_timeout=-1)


def test_facts_and_models_are_told_apart():
    facts = shardlint.snapshot(model(), config=False)
    with pytest.raises(TypeError, match=r"got Facts: facts are linted by shardlint\.lint_facts"):
        shardlint.lint(facts, config=False)
    with pytest.raises(TypeError, match=r"expected shardlint\.Facts, got Sequential; a model is linted by"):
        shardlint.lint_facts(model())
    assert shardlint.lint_facts(facts).exit_status == 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"select": ["D9"]}, "select"),
        ({"extend_select": "D9"}, "extend-select"),
        ({"severity": {"D4": "x"}}, "severity"),
    ],
)
def test_errors_of_selectors_name_arguments_and_no_flags(arguments, name):
    with pytest.raises(SelectionError) as error:
        shardlint.lint(model(), config=False, **arguments)
    assert str(error.value).startswith(f"{name}: ")


def test_one_name_in_evaluated_is_one_rule():
    assert_clean(model(), config=False, evaluated="D401")
    with pytest.raises(AssertionError) as error:
        assert_clean(model(), config=False, evaluated="D601")
    assert str(error.value).startswith("expected a clean lint, found 1 rule not evaluated\n")
    with pytest.raises(AssertionError, match="found 2 rules not evaluated\n"):
        assert_clean(model(), config=False, evaluated=["D601", "D602"])


def test_one_error_is_no_errors():
    with torch.device("meta"):
        built = nn.Linear(2, 2, bias=False)
    report = shardlint.lint(built, config=False)
    with pytest.raises(shardlint.LintError) as error:
        report.raise_for_errors()
    assert str(error.value).startswith("shardlint found 1 error\n")
    with pytest.raises(AssertionError, match="expected a clean lint, found 1 finding\n"):
        assert_clean(built, config=False)
