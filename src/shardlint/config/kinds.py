"""
The kinds of single value that a setting may have. Each reads a node, tells its JSON Schema, and describes itself.

A kind never raises for what the user wrote: it notes a problem and returns None, so that every error of a file is
told at once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from attrs import frozen

from ..names import did_you_mean
from .nodes import NodeKind, SettingNode
from .values import Value, ValueKind, ValueReader


@frozen(kw_only=True)
class String:
    """A string that is not blank. `check` may refuse it or change it; its `ValueError` is the message."""

    wanted: str = "a string"
    check: Callable[[str], str] | None = None
    pattern: str | None = None

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        text = node.text()
        if text is None or not text.strip():
            reader.problem(
                node, path, f"expected {self.wanted}, got {node.describe() if text is None else 'an empty string'}"
            )
            return None
        try:
            return Value(self.check(text) if self.check else text, reader.source(node, path))
        except ValueError as error:
            reader.problem(node, path, str(error))
            return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1} | ({"pattern": self.pattern} if self.pattern else {})


def _path(text: str) -> str:
    if "\0" in text:
        raise ValueError("expected a path relative to this file, got one with a null character")
    return text


@frozen
class FilePath:
    """A path, relative to the file that it stands in; read as an absolute path."""

    wanted: str = "a path relative to this file"

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        value = String(wanted=self.wanted, check=_path).read(node, path, reader)
        return Value(str(reader.folder / value.data), value.source) if value else None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


@frozen
class Choice:
    """One of a few words."""

    values: tuple[str, ...]

    @property
    def wanted(self) -> str:
        *most, last = self.values
        return f"{', '.join(most)} or {last}" if most else last

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        text = node.text()
        if text in self.values:
            return Value(text, reader.source(node, path))
        hint = did_you_mean(text.lower(), self.values) if text else ""
        reader.problem(node, path, f"expected {self.wanted}, got {node.describe()}{hint}")
        return None

    def schema(self) -> dict[str, Any]:
        # Editors read YAML 1.1, where an unquoted `off` is false.
        return {"enum": [*self.values, *([False] if "off" in self.values else [])]}


@frozen
class Boolean:
    """True or false."""

    wanted: str = "true or false"

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        value = node.boolean()
        if value is None:
            reader.expected(node, path, self.wanted)
            return None
        return Value(value, reader.source(node, path))

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@frozen(kw_only=True)
class Integer:
    """An integer between two bounds, both included."""

    minimum: int
    maximum: int | None = None

    @property
    def wanted(self) -> str:
        if self.minimum == self.maximum:
            return str(self.minimum)
        upper = "" if self.maximum is None else f" and at most {self.maximum}"
        return f"an integer of at least {self.minimum}{upper}"

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        value = node.integer()
        if value is None or value < self.minimum or (self.maximum is not None and value > self.maximum):
            reader.expected(node, path, self.wanted)
            return None
        return Value(value, reader.source(node, path))

    def schema(self) -> dict[str, Any]:
        upper = {} if self.maximum is None else {"maximum": self.maximum}
        return {"type": "integer", "minimum": self.minimum} | upper


@frozen
class NumberOrName:
    """A positive integer, or the name of something that holds one."""

    wanted: str

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        kind: ValueKind = String(wanted=self.wanted) if node.integer() is None else Integer(minimum=1)
        return kind.read(node, path, reader)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [String().schema(), Integer(minimum=1).schema()]}


@frozen
class Date:
    """A day, written YYYY-MM-DD, with or without quotes."""

    wanted: str = "a date YYYY-MM-DD"

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        if node.kind is NodeKind.DATE:
            return Value(node.value, reader.source(node, path))
        try:
            text = node.text() or ""
            day = date.fromisoformat(text)
            if text != day.isoformat():
                raise ValueError(text)
            return Value(day, reader.source(node, path))
        except ValueError:
            reader.expected(node, path, self.wanted)
            return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date"}
