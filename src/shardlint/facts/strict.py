"""Find in JSON what a lenient decoder passes over: fields that no class has, and keys that an object has twice."""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import attrs

from ..names import did_you_mean, printable

PROBLEM_LIMIT = 200  # a file with more is not a facts file with mistakes, but something else
KEY_LIMIT = 80  # characters of a key that a message shows

Walker = Callable[[Any, str], Iterator[str]]


class _Doubled(dict[str, Any]):
    """An object of the JSON text that had a key twice; `key` is the first such key."""

    key = ""


def strict_problems(data: bytes, kind: type) -> list[str]:
    """
    Name every unknown field and duplicate key of `data`, which is valid JSON for the attrs class `kind`.

    Linear in the size of `data`.
    """
    doubled: list[_Doubled] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        plain = dict(items)
        if len(plain) == len(items):
            return plain
        found = _Doubled(plain)
        seen: set[str] = set()
        found.key = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        doubled.append(found)
        return found

    try:
        value = json.loads(data, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        return [f"it cannot be read: {error}"]
    walker = _walker(kind)
    found = chain(_doubled_keys(value, "") if doubled else (), walker(value, "") if walker else ())
    problems = list(islice(found, PROBLEM_LIMIT))
    return [*problems, "the rest was not looked at"] if len(problems) == PROBLEM_LIMIT else problems


def _doubled_keys(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Doubled):
        yield f"{_join(path, value.key)}: the key stands there twice"
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _doubled_keys(item, _join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _doubled_keys(item, f"{path}[{index}]")


def _join(path: str, key: str) -> str:
    shown = printable(key if len(key) <= KEY_LIMIT else key[:KEY_LIMIT] + "...")
    return f"{path}.{shown}" if path else shown


@functools.cache
def _walker(kind: Any) -> Walker | None:
    """A function that walks a value of the declared type `kind`; None when there is no attrs class inside it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if attrs.has(kind) and isinstance(kind, type):
        return _class_walker(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_walker({_json_kind(argument): walker for argument in arguments if (walker := _walker(argument))})
    if origin is tuple and arguments[1:] == (Ellipsis,):
        walker = _walker(arguments[0])
        return _sequence_walker(walker) if walker else None
    return None


def _class_walker(kind: type) -> Walker:
    hints = typing.get_type_hints(kind)
    known = {field.name for field in attrs.fields(kind)}
    nested: dict[str, Walker] | None = None

    def walk(value: Any, path: str) -> Iterator[str]:
        nonlocal nested
        if nested is None:  # on first use, so that a class may contain itself
            found = {name: _walker(hints[name]) for name in known}
            nested = {name: walker for name, walker in found.items() if walker}
        for key in sorted(value.keys() - known):
            yield f"{_join(path, key)}: unknown field{did_you_mean(key[:KEY_LIMIT], known)}"
        for name, walker in nested.items():
            if name in value:
                yield from walker(value[name], f"{path}.{name}" if path else name)

    return walk


def _json_kind(kind: Any) -> type:
    """What a value of an attrs class, or of a tuple of such, is in JSON."""
    return list if typing.get_origin(kind) is tuple else dict


def _union_walker(walkers: dict[type, Walker]) -> Walker | None:
    """Of the members of a union msgspec has taken the one that fits: at most one is an object, and one an array."""

    def walk(value: Any, path: str) -> Iterator[str]:
        walker = walkers.get(type(value))
        return walker(value, path) if walker else iter(())

    return walk if walkers else None


def _sequence_walker(walker: Walker) -> Walker:
    def walk(value: Any, path: str) -> Iterator[str]:
        for index, item in enumerate(value):
            yield from walker(item, f"{path}[{index}]")

    return walk
