"""Immutable values."""

import copy
import enum
import math
import pickle

import pytest

from shardlint.facts import EMPTY, FrozenDict, freeze, thaw


def test_nothing_changes_a_frozen_dict() -> None:
    source = {"a": {"b": [1, {"c": 2}]}}
    value = FrozenDict(source)
    source["a"]["b"].append(3)
    assert thaw(value) == {"a": {"b": [1, {"c": 2}]}}
    for change in (
        lambda: value.__setitem__("a", 1),
        lambda: value.__delitem__("a"),
        lambda: setattr(value, "other", 1),
        lambda: delattr(value, "_items"),
        lambda: value.update(a=1),
        lambda: value["a"]["b"].append(1),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change()
    with pytest.raises(AttributeError, match="immutable"):
        value._items = {}


def test_equality_order_hash_and_copies() -> None:
    one, other = FrozenDict({"a": 1, "b": 2}), FrozenDict(b=2, a=1)
    assert one == other == {"a": 1, "b": 2}
    assert one != {"a": 1}
    assert one != 3
    assert hash(one) == hash(other)
    assert list(one) == ["a", "b"]
    assert list(other) == ["b", "a"]
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert repr(one) == "FrozenDict({'a': 1, 'b': 2})"
    assert EMPTY == {}
    assert "a" in one
    assert len(one) == 2


def test_keys_are_strings() -> None:
    with pytest.raises(TypeError, match=r"takes string keys, got 1 \(int\)"):
        FrozenDict({1: 2})
    assert freeze({0: 2, None: 3}) == {"0": 2, "None": 3}
    with pytest.raises(TypeError, match="the same as strings"):
        freeze({1: "a", "1": "b"})


def test_numbers_that_json_has_not_become_texts() -> None:
    assert freeze([math.nan, math.inf, -math.inf, 1.5]) == ("NaN", "Infinity", "-Infinity", 1.5)


def test_subclasses_become_what_they_are_based_on() -> None:
    class Text(str):
        def __str__(self) -> str:
            return "a lie"

    class Number(int):
        pass

    class Real(float):
        pass

    class Color(enum.Enum):
        RED = "red"

    for value, kind in ((Text("x"), str), (Number(3), int), (Real(2.5), float), (Color.RED, str), (True, bool)):
        assert type(freeze(value)) is kind
    assert freeze(Text("x")) == "x"
    assert freeze(Color.RED) == "red"


def test_sets_have_one_order_and_foreign_objects_are_refused() -> None:
    assert freeze({"b", "a", "c"}) == ("a", "b", "c")
    with pytest.raises(TypeError, match=r"expected a plain value .* got object"):
        freeze({"a": [object()]})
