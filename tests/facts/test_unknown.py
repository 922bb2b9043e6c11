"""A fact that is not known raises whenever it is used, and survives JSON."""

import operator

import msgspec
import pytest

from shardlint import NotEvaluated, Unknown, UnknownFact
from shardlint.facts import is_known, known

USES = {
    "bool": bool,
    "not": operator.not_,
    "len": len,
    "iter": list,
    "in": lambda value: "a" in value,
    "is contained": lambda value: value in (None, 0, "a"),
    "item": lambda value: value[0],
    "equal": lambda value: value == 1,
    "equal from the left": lambda value: 1 == value,  # noqa: SIM300 - the order is what is tested
    "different": lambda value: value != "a",
    "less": lambda value: value < 1,
    "greater from the left": lambda value: 1 > value,  # noqa: SIM300
    "add": lambda value: value + 1,
    "add from the left": lambda value: 1 + value,
    "subtract from the left": lambda value: 1 - value,
    "multiply": lambda value: value * 2,
    "divide": lambda value: value / 2,
    "int": int,
    "float": float,
    "index": lambda value: [1, 2][value],
    "str": str,
    "format": lambda value: f"{value}",
    "attribute": lambda value: value.fqn,
    "call of a method": lambda value: value.startswith("a"),
    "known": known,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_use_raises_and_says_why(use):
    with pytest.raises(UnknownFact, match="a Params4bit is not read"):
        use(Unknown("a Params4bit is not read"))


def test_asking_is_no_use():
    value = Unknown("why")
    assert isinstance(value, Unknown)
    assert value is not None
    assert not is_known(value)
    assert is_known(0)
    assert known(0) == 0
    assert repr(value) == "Unknown('why')"


def test_two_are_equal_when_their_reasons_are():
    assert Unknown("a") == Unknown("a")
    assert Unknown("a") != Unknown("b")


def test_looking_one_up_in_a_set_is_using_it():
    with pytest.raises(UnknownFact, match="why"):
        _ = Unknown("why") in {"float32", "bfloat16"}
    with pytest.raises(UnknownFact, match="why"):
        _ = {"a": 1}.get(Unknown("why"))


@pytest.mark.parametrize("kind", [bool | Unknown, str | None | Unknown, tuple[str, ...] | Unknown, float | Unknown])
def test_it_survives_json(kind):
    assert msgspec.json.decode(msgspec.json.encode(Unknown("why")), type=kind) == Unknown("why")


def test_a_rule_that_lacks_a_fact_says_it_in_the_same_way():
    assert issubclass(NotEvaluated, UnknownFact)
