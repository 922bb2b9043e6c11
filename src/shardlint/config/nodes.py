"""A configuration file as a tree of positioned nodes, the same for YAML and TOML."""

from __future__ import annotations

import enum
import re
from typing import Any

from attrs import field, frozen

from ..names import printable
from .problems import ConfigProblem

MAX_DEPTH = 40
MAX_NODES = 100_000
MAX_BYTES = 1 << 20

_INTEGER = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?\Z")
_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class NodeKind(enum.Enum):
    """The kinds of node. `PLAIN` is an unquoted YAML scalar: whoever reads it decides what it is."""

    MAPPING = "a mapping"
    SEQUENCE = "a list"
    STRING = "a string"
    PLAIN = "a plain scalar"
    INTEGER = "an integer"
    FLOAT = "a number"
    BOOLEAN = "a boolean"
    DATE = "a date"
    OTHER = "a date with a time"


@frozen
class Entry:
    """One key of a mapping, its place and its value."""

    key: str
    line: int
    column: int
    node: SettingNode


@frozen
class SettingNode:
    """
    A value and its place. `value` is a tuple of entries, a tuple of nodes, or a scalar (text for `PLAIN`).

    `size` counts the nodes that it stands for when every alias is expanded.
    """

    kind: NodeKind
    value: Any
    line: int = 0
    column: int = 0
    size: int = field(default=1, eq=False)

    @property
    def is_null(self) -> bool:
        """Whether nothing was written."""
        return self.kind is NodeKind.PLAIN and self.value in _NULLS

    def text(self) -> str | None:
        """The value as a string, None when it is none."""
        textual = self.kind is NodeKind.STRING or (self.kind is NodeKind.PLAIN and not self.is_null)
        return str(self.value) if textual else None

    def integer(self) -> int | None:
        """The value as an integer, None when it is none."""
        if self.kind is NodeKind.INTEGER:
            return int(self.value)
        return int(self.value) if self.kind is NodeKind.PLAIN and _INTEGER.match(self.value) else None

    def boolean(self) -> bool | None:
        """The value as a boolean (true, yes, on and their opposites), None when it is none."""
        if self.kind is NodeKind.BOOLEAN:
            return bool(self.value)
        return _BOOLEANS.get(self.value.lower()) if self.kind is NodeKind.PLAIN else None

    def plain(self) -> Any:
        """
        The value as plain data where no type is prescribed: as YAML 1.2 reads it, so `off` and dates are strings.
        """
        if self.kind is NodeKind.MAPPING:
            return {entry.key: entry.node.plain() for entry in self.value}
        if self.kind is NodeKind.SEQUENCE:
            return [node.plain() for node in self.value]
        if self.kind in (NodeKind.DATE, NodeKind.OTHER):
            return str(self.value.isoformat())
        return self._resolved() if self.kind is NodeKind.PLAIN else self.value

    def _resolved(self) -> Any:
        if self.is_null:
            return None
        if self.value in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return self.value.lower() == "true"
        if _INTEGER.match(self.value):
            return int(self.value)
        return float(self.value) if _FLOAT.match(self.value) else self.value

    def describe(self) -> str:
        """What was found, for the end of `expected ..., got ...`."""
        if self.kind in (NodeKind.MAPPING, NodeKind.SEQUENCE):
            return str(self.kind.value if self.value else "an empty " + self.kind.value.removeprefix("a "))
        if self.is_null:
            return "nothing"
        if self.kind is NodeKind.BOOLEAN:
            return "true" if self.value else "false"
        text = self.value.isoformat() if self.kind in (NodeKind.DATE, NodeKind.OTHER) else str(self.value)
        shown = printable(text if len(text) <= 60 else text[:57] + "...")
        textual = self.kind is NodeKind.STRING or (self.kind is NodeKind.PLAIN and isinstance(self._resolved(), str))
        return f"'{shown}'" if textual else shown


class RefusedError(Exception):
    """A file that cannot be read as a tree at all. Holds the one problem."""

    def __init__(self, problem: ConfigProblem) -> None:
        self.problem = problem
        super().__init__(str(problem))


@frozen
class Text:
    """The text of a file, for problems that show its lines."""

    file: str
    text: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, file: str, text: str) -> Text:
        """The text cut into lines the way YAML and TOML do."""
        return cls(file, text, tuple(re.split(r"\r\n|\n|\r", text)))

    def problem(self, line: int, column: int, key: str, message: str) -> ConfigProblem:
        """A problem at a place of this file."""
        shown = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return ConfigProblem(file=self.file, line=line, column=column, key=key, message=message, source_line=shown)
