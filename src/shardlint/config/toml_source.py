"""
Read TOML into positioned nodes. `tomllib` gives the values but no places, so a small scanner finds the keys.

The scanner runs only over text that `tomllib` accepted, so it need not judge anything.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

from .nodes import MAX_DEPTH, Entry, NodeKind, RefusedError, SettingNode, Text

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' r"|'''.*?'''(?:'{0,2})" r'|"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'", re.DOTALL
)
_OTHER = re.compile(r"[^,\]}\n#]*")
_AT = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)\Z")


def read_toml(text: Text) -> SettingNode:
    """The node of the whole file. Raises `RefusedError` when it is not a TOML that a configuration may be."""
    try:
        data = tomllib.loads(text.text)
    except RecursionError:
        message = f"expected at most {MAX_DEPTH} levels of nesting, got more"
        raise RefusedError(text.problem(0, 0, "", message)) from None
    except ValueError as error:
        place = _AT.search(str(error))
        line, column = (int(place[1]), int(place[2])) if place and place[1] else (0, 0)
        message = f"expected valid TOML, got a syntax error: {_AT.sub('', str(error))}"
        raise RefusedError(text.problem(line, column, "", message)) from None
    _check_depth(text, data, 0)
    return _node(data, (), Places(text.text))


def _check_depth(text: Text, value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RefusedError(text.problem(0, 0, "", f"expected at most {MAX_DEPTH} levels of nesting, got more"))
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        _check_depth(text, child, depth + 1)


def _node(value: Any, path: Path, places: Places) -> SettingNode:
    line, column = places.value(path)
    if isinstance(value, Mapping):
        entries = (Entry(key, *places.key((*path, key)), _node(v, (*path, key), places)) for key, v in value.items())
        return SettingNode(NodeKind.MAPPING, tuple(entries), line, column)
    if isinstance(value, list):
        items = tuple(_node(element, (*path, index), places) for index, element in enumerate(value))
        return SettingNode(NodeKind.SEQUENCE, items, line, column)
    return SettingNode(_kind(value), value, line, column)


def _kind(value: Any) -> NodeKind:
    if isinstance(value, (datetime, time)):
        return NodeKind.OTHER
    kinds = (
        (bool, NodeKind.BOOLEAN),
        (str, NodeKind.STRING),
        (int, NodeKind.INTEGER),
        (float, NodeKind.FLOAT),
        (date, NodeKind.DATE),
    )
    return next(kind for cls, kind in kinds if isinstance(value, cls))


class Places:
    """Lines and columns of keys and values, by their path in the data."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._keys: dict[Path, int] = {}
        self._values: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        self._text = text
        self._at = 0
        self._scan()

    def key(self, path: Path) -> tuple[int, int]:
        """Line and column of the key, (0, 0) when it was not found."""
        return self._place(self._keys.get(path))

    def value(self, path: Path) -> tuple[int, int]:
        """Line and column of the value; of a table, those of its key."""
        return self._place(self._values.get(path, self._keys.get(path)))

    def _place(self, offset: int | None) -> tuple[int, int]:
        if offset is None:
            return 0, 0
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match.group() if match else ""

    def _scan(self) -> None:
        prefix: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            start = self._at
            if self._text[self._at] == "[":
                prefix = self._header()
            else:
                self._statement(prefix)
            self._skip(_BLANK)
            if self._at == start:  # never on text that tomllib accepted; better no places than no end
                return

    def _header(self) -> Path:
        array = self._text.startswith("[[", self._at)
        start = self._at
        self._at += 2 if array else 1
        path: Path = ()
        parts = self._key_parts()
        for index, (part, offset) in enumerate(parts):
            path = (*path, part)
            self._keys.setdefault(path, offset)
            last = index == len(parts) - 1
            if last and array:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
        self._values.setdefault(path, start)
        self._at += 2 if array else 1
        return path

    def _key_parts(self) -> list[tuple[str, int]]:
        """The parts of a dotted key and their offsets; ends behind the last part and the space after it."""
        parts: list[tuple[str, int]] = []
        while True:
            self._skip(_SPACE)
            offset = self._at
            token = self._skip(_BARE)
            if not token:
                token = tomllib.loads(f"k = {self._skip(_STRING)}")["k"]
            parts.append((token, offset))
            self._skip(_SPACE)
            if self._text[self._at : self._at + 1] != ".":
                return parts
            self._at += 1

    def _statement(self, prefix: Path) -> None:
        path = prefix
        for part, offset in self._key_parts():
            path = (*path, part)
            self._keys.setdefault(path, offset)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        self._values[path] = self._at
        opening = self._text[self._at : self._at + 1]
        if opening in ("[", "{"):
            self._at += 1
            self._members(path, "]" if opening == "[" else "}")
        elif opening in ('"', "'"):
            self._skip(_STRING)
        else:
            self._skip(_OTHER)

    def _members(self, path: Path, closing: str) -> None:
        index = 0
        self._skip(_BLANK)
        while self._text[self._at : self._at + 1] not in (closing, ""):
            if closing == "]":
                self._value((*path, index))
            else:
                self._statement(path)
            index += 1
            self._skip(_BLANK)
            if self._text[self._at : self._at + 1] == ",":
                self._at += 1
                self._skip(_BLANK)
        self._at += 1
