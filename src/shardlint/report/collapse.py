"""Join findings of one rule that differ only in layer or expert numbers. Text only: JSON keeps every finding."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen

from ..facts import FrozenDict
from ..names import natural_key, ranges
from ..rule import Finding

# A dotted name in running text. It may begin with a number (`0.weight`), but not inside a path or a file name.
_NAME = re.compile(r"(?<![\w./\\-])\w+(?:\.\w+)+")


@frozen
class Group:
    """Findings that are shown as one row: `subject` and `message` name them all."""

    findings: tuple[Finding, ...]
    subject: str
    message: str
    evidence: FrozenDict

    @property
    def first(self) -> Finding:
        """The first finding in report order."""
        return self.findings[0]


def groups(findings: Sequence[Finding], *, collapse: bool = True) -> list[Group]:
    """
    The rows for `findings` of one rule, in report order.

    Every collapsed subject is an exact product: `layers.{0..3}.experts.{0,1}` stands for eight findings, all of them
    there. Findings that differ in anything but the numbers of dotted names are rows of their own.
    """
    if not collapse:
        return [Group((item,), item.subject, item.message, item.evidence) for item in findings]
    families: dict[Any, list[Finding]] = {}
    for item in findings:
        families.setdefault(_family(item), []).append(item)
    rows = [_row(members) for family in families.values() for members in _products(family)]
    return sorted(rows, key=lambda row: natural_key(row.first.subject))


def _family(item: Finding) -> Any:
    texts = (item.subject, item.message, item.owner or "", item.why, item.remediation)
    shape = tuple(_template(text) for text in texts)
    return (shape, item.severity, item.kind, item.ranks, _value_template(item.evidence))


def _is_number(segment: str) -> bool:
    """Whether the segment is a number that stays the same when it is written anew (`07` does not)."""
    return segment.isascii() and segment.isdigit() and (segment == "0" or segment[0] != "0")


def _parts(name: str) -> list[str]:
    return name.split(".")


def _is_name(text: str) -> bool:
    return not all(part.isdigit() for part in _parts(text))


@functools.lru_cache(maxsize=4096)
def _template(text: str) -> str:
    """`text` with the numbers of its dotted names replaced: two texts of one template differ in those alone."""
    return _NAME.sub(lambda match: _name_template(match.group()), text)


def _name_template(name: str) -> str:
    return ".".join("#" if _is_number(part) else part for part in _parts(name)) if _is_name(name) else name


def _value_template(value: Any) -> Any:
    if isinstance(value, str):
        return _template(value)
    if isinstance(value, FrozenDict):
        return tuple((_template(key), _value_template(item)) for key, item in value.items())
    if isinstance(value, tuple):
        return tuple(_value_template(item) for item in value)
    return (type(value).__name__, value)


def _products(family: list[Finding]) -> Iterable[list[Finding]]:
    """
    Split a family into groups whose subjects are all combinations of their numbers.

    Starting from single names, names that agree in every column but one are joined, column by column.
    """
    numbers: dict[tuple[frozenset[int], ...], list[Finding]] = {}
    for item in family:
        found = tuple(frozenset({int(part)}) for part in _parts(item.subject) if _is_number(part))
        numbers.setdefault(found, []).append(item)
    for column in reversed(range(len(next(iter(numbers))))):
        joined: dict[Any, list[tuple[frozenset[int], ...]]] = {}
        for key, members in numbers.items():
            each = len(members) // _size(key)
            joined.setdefault((key[:column], key[column + 1 :], each), []).append(key)
        numbers = dict(_join(keys, column, numbers) for keys in joined.values())
    return numbers.values()


def _size(key: tuple[frozenset[int], ...]) -> int:
    return math.prod(len(column) for column in key)


def _join(
    keys: list[tuple[frozenset[int], ...]], column: int, numbers: dict[tuple[frozenset[int], ...], list[Finding]]
) -> tuple[tuple[frozenset[int], ...], list[Finding]]:
    merged = frozenset().union(*(key[column] for key in keys))
    first = keys[0]
    return (*first[:column], merged, *first[column + 1 :]), [item for key in keys for item in numbers[key]]


def _row(members: list[Finding]) -> Group:
    return Group(
        tuple(members),
        _joined([item.subject for item in members], dotted=True),
        _joined([item.message for item in members]),
        _joined_value([item.evidence for item in members]),
    )


def _joined_value(values: Sequence[Any]) -> Any:
    """One value for values of the same template."""
    first = values[0]
    if isinstance(first, str):
        return _joined(values)
    if isinstance(first, FrozenDict):
        keys = zip(*(value.keys() for value in values), strict=True)
        items = zip(*(value.values() for value in values), strict=True)
        return FrozenDict({_joined(key): _joined_value(item) for key, item in zip(keys, items, strict=True)})
    if isinstance(first, tuple):
        return tuple(_joined_value(items) for items in zip(*values, strict=True))
    return first


def _joined(texts: Sequence[str], *, dotted: bool = False) -> str:
    """One text for texts of the same template: numbers that vary become their ranges in braces."""
    if len(set(texts)) == 1:
        return texts[0]
    if dotted:
        return _joined_name(texts)
    pieces = [_NAME.split(text) for text in texts]
    names = zip(*(_NAME.findall(text) for text in texts), strict=True)
    middle = [_joined_name(column) for column in names]
    return "".join(piece + name for piece, name in zip(pieces[0], [*middle, ""], strict=True))


def _joined_name(names: Sequence[str]) -> str:
    columns = zip(*(_parts(name) for name in names), strict=True)
    parts = [column[0] if len(set(column)) == 1 else "{" + ranges(map(int, column)) + "}" for column in columns]
    return ".".join(parts)
