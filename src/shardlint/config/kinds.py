"""
The kinds of value that a setting may have. Each reads a node, tells its JSON Schema, and describes itself.

A kind never raises for what the user wrote: it notes a problem and returns None, so that every error of a file is
told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from attrs import field, frozen

from ..names import did_you_mean, printable
from ..source import DEFAULT, Source
from .nodes import Entry, Kind, Node, Text
from .problems import ConfigProblem

_HINTED = 200  # suggestions cost time: none for the many problems of a file that is something else altogether


@frozen
class Value:
    """A value that was read and where it stands. `data` is a dict or tuple of values, or a plain scalar."""

    data: Any
    source: Source = DEFAULT

    def plain(self) -> Any:
        """The data alone, as dicts, tuples and scalars."""
        if isinstance(self.data, dict):
            return {key: item.plain() for key, item in self.data.items()}
        return tuple(item.plain() for item in self.data) if isinstance(self.data, tuple) else self.data

    def leaves(self, path: str = "") -> Iterator[tuple[str, Value]]:
        """Every scalar and every empty collection below, with its dotted path."""
        if isinstance(self.data, dict) and self.data:
            for key, item in self.data.items():
                yield from item.leaves(join(path, key))
        elif isinstance(self.data, tuple) and self.data:
            for index, item in enumerate(self.data):
                yield from item.leaves(f"{path}[{index}]")
        else:
            yield path, self

    def get(self, *keys: str) -> Value | None:
        """The value below, by its keys, None when it was not set."""
        value: Value | None = self
        for key in keys:
            value = value.data.get(key) if value is not None and isinstance(value.data, dict) else None
        return value


def join(path: str, key: str) -> str:
    """The dotted path of a key; a key with other characters than those of names stands in quotes."""
    shown = key if key.replace("-", "").replace("_", "").isalnum() else repr(key)
    return f"{path}.{shown}" if path else shown


@frozen
class Reader:
    """Reads the nodes of one file: knows its text and folder, and collects the problems."""

    text: Text
    folder: Path
    problems: list[ConfigProblem] = field(factory=list)

    def source(self, node: Node, path: str) -> Source:
        """Where a node stands."""
        return Source(self.text.file, node.line, node.column, path)

    def problem(self, node: Node | Entry, path: str, message: str) -> None:
        """Note a problem at a node or key."""
        self.problems.append(self.text.problem(node.line, node.column, path, message))

    def expected(self, node: Node, path: str, wanted: str) -> None:
        """Note that something else was expected than what is there."""
        self.problem(node, path, f"expected {wanted}, got {node.describe()}")


class ValueKind(Protocol):
    """A kind of value."""

    @property
    def wanted(self) -> str:
        """What is expected, in words."""

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
        """The value of the node, None after noting a problem."""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the value."""


@frozen(kw_only=True)
class String:
    """A string that is not blank. `check` may refuse it or change it; its `ValueError` is the message."""

    wanted: str = "a string"
    check: Callable[[str], str] | None = None
    pattern: str | None = None

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
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

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
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

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
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

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
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

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
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

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
        kind: ValueKind = String(wanted=self.wanted) if node.integer() is None else Integer(minimum=1)
        return kind.read(node, path, reader)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [String().schema(), Integer(minimum=1).schema()]}


@frozen
class Date:
    """A day, written YYYY-MM-DD, with or without quotes."""

    wanted: str = "a date YYYY-MM-DD"

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
        if node.kind is Kind.DATE:
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


@frozen(kw_only=True)
class ListOf:
    """
    A list of values of one kind. With `bare`, a single value may stand without the list.

    `unique` is the key of the items, which are mappings, whose values must differ.
    """

    item: ValueKind
    bare: bool = False
    minimum: int = 0
    unique: str = ""

    @property
    def wanted(self) -> str:
        few = "a list with at least one item" if self.minimum else "a list"
        return f"{self.item.wanted} or {few}" if self.bare else few

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
        if node.kind is not Kind.SEQUENCE and self.bare and node.kind is not Kind.MAPPING:
            single = self.item.read(node, path, reader)
            return Value((single,), single.source) if single else None
        if node.kind is not Kind.SEQUENCE or len(node.value) < self.minimum:
            reader.expected(node, path, self.wanted)
            return None
        items = [self.item.read(item, f"{path}[{index}]", reader) for index, item in enumerate(node.value)]
        self._check_unique(items, reader)
        return Value(tuple(item for item in items if item is not None), reader.source(node, path))

    def _check_unique(self, items: Sequence[Value | None], reader: Reader) -> None:
        first: dict[Any, Value] = {}
        for value in [item.get(self.unique) for item in items if item is not None and self.unique]:
            if value is None:
                continue
            place = first.setdefault(value.data, value).source
            if place != value.source:
                message = f"expected each {self.unique} once, got {value.data!r} again (first at line {place.line})"
                source = value.source
                reader.problems.append(reader.text.problem(source.line, source.column, source.text, message))

    def schema(self) -> dict[str, Any]:
        array: dict[str, Any] = {"type": "array", "items": self.item.schema()}
        if self.minimum:
            array["minItems"] = self.minimum
        return {"anyOf": [self.item.schema(), array]} if self.bare else array


@frozen(kw_only=True)
class MapOf:
    """A mapping whose keys the user chooses."""

    value: ValueKind
    wanted: str = "a mapping"

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
        if node.kind is not Kind.MAPPING:
            reader.expected(node, path, self.wanted)
            return None
        found: dict[str, Value] = {}
        for entry in node.value:
            if not entry.key.strip():
                reader.problem(entry, path, "expected a key, got an empty one")
                continue
            value = self.value.read(entry.node, join(path, entry.key), reader)
            if value is not None:
                found[entry.key] = value
        return Value(found, reader.source(node, path))

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.value.schema()}


@frozen
class Free:
    """Any value: whoever uses it validates it. With `mapping`, a mapping of any values."""

    mapping: bool = False

    @property
    def wanted(self) -> str:
        return "a mapping" if self.mapping else "any value"

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
        if self.mapping and node.kind is not Kind.MAPPING:
            reader.expected(node, path, self.wanted)
            return None
        return _free(node, path, reader)

    def schema(self) -> dict[str, Any]:
        return {"type": "object"} if self.mapping else {}


def _free(node: Node, path: str, reader: Reader) -> Value:
    data: Any
    if node.kind is Kind.MAPPING:
        data = {entry.key: _free(entry.node, join(path, entry.key), reader) for entry in node.value}
    elif node.kind is Kind.SEQUENCE:
        data = tuple(_free(item, f"{path}[{index}]", reader) for index, item in enumerate(node.value))
    else:
        data = node.plain()
    return Value(data, reader.source(node, path))


@frozen
class Key:
    """
    One key of a table: its kind, what it is for, its default (None when there is none).

    `appends`: in a file that extends another, the list is added to the inherited one instead of replacing it.
    """

    name: str
    kind: ValueKind
    doc: str
    default: Any = field(default=None, kw_only=True)
    required: bool = field(default=False, kw_only=True)
    appends: bool = field(default=False, kw_only=True)


@frozen
class Table:
    """A mapping with known keys. `short` names the key that a bare string in its place is the value of."""

    keys: Sequence[Key]
    wanted: str = field(default="a mapping", kw_only=True)
    short: str = field(default="", kw_only=True)

    def read(self, node: Node, path: str, reader: Reader) -> Value | None:
        if self.short and node.text() is not None:
            whole = Entry(self.short, node.line, node.column, node)
            node = Node(Kind.MAPPING, (whole,), node.line, node.column)
        if node.kind is not Kind.MAPPING:
            reader.expected(node, path, self.wanted)
            return None
        by_name = {key.name: key for key in self.keys}
        found: dict[str, Value] = {}
        for entry in node.value:
            value = self._entry(by_name, entry, path, reader)
            if value is not None:
                found[entry.key] = value
        written = {entry.key for entry in node.value}
        for key in self.keys:
            if key.required and key.name not in written:
                reader.problem(
                    node, path, f"expected the key {key.name!r} ({key.kind.wanted}), got a mapping without it"
                )
        return Value(found, reader.source(node, path))

    def _entry(self, by_name: Mapping[str, Key], entry: Entry, path: str, reader: Reader) -> Value | None:
        key = by_name.get(entry.key)
        inner = join(path, entry.key)
        if key is not None:
            return key.kind.read(entry.node, inner, reader)
        few = len(reader.problems) < _HINTED and len(entry.key) < _HINTED
        hint = did_you_mean(entry.key.replace("_", "-"), by_name) if few else ""
        known = hint or f" (known keys: {', '.join(by_name)})"
        reader.problem(entry, inner, f"expected a known key, got '{printable(entry.key)}'{known}")
        return None

    def schema(self) -> dict[str, Any]:
        properties = {}
        for key in self.keys:
            properties[key.name] = key.kind.schema() | {"description": key.doc}
            if key.default is not None:
                properties[key.name]["default"] = key.default
        required = [key.name for key in self.keys if key.required]
        table: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            table["required"] = required
        return {"anyOf": [{"type": "string", "minLength": 1}, table]} if self.short else table
