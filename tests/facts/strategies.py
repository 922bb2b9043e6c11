"""Hypothesis strategies for every facts class, made from its annotations: a new section is covered without a word."""

import functools
import types
import typing

import attrs
import msgspec
from hypothesis import strategies as st

from shardlint.facts import FrozenDict

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True, allow_infinity=True) | TEXT
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
BASE = {
    str: TEXT,
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
    FrozenDict: st.dictionaries(TEXT, PLAIN, max_size=3).map(FrozenDict),
    typing.Any: PLAIN,
}


@functools.cache
def values_of(kind: object) -> st.SearchStrategy:
    """Values of a declared type: plain ones, unions, tuples and attrs classes."""
    if kind in BASE:
        return BASE[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(member) for member in arguments])
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if isinstance(kind, type) and (attrs.has(kind) or issubclass(kind, msgspec.Struct)):
        return _instances(kind)
    raise TypeError(f"no strategy for {kind!r}")


def _instances(kind: type) -> st.SearchStrategy:
    hints = typing.get_type_hints(kind)
    if issubclass(kind, msgspec.Struct):
        names = [item.name for item in msgspec.structs.fields(kind)]
    else:
        names = [item.name for item in attrs.fields(kind) if item.init]
    return st.fixed_dictionaries({name: values_of(hints[name]) for name in names}).flatmap(
        lambda values: _built(kind, values)
    )


def _built(kind: type, values: dict) -> st.SearchStrategy:
    try:
        built = kind(**values)
    except ValueError:  # a class may refuse some combinations
        return st.nothing()
    return st.none().map(lambda _: built)  # just() would hash it, and facts that are not known cannot be hashed
