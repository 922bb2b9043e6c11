"""The kinds of setting that hold others: lists, mappings with the user's keys, tables with known keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from ..names import did_you_mean, printable
from .nodes import Entry, NodeKind, SettingNode
from .values import Value, ValueKind, ValueReader, join

_HINTED = 200  # suggestions cost time: none for the many problems of a file that is something else altogether


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
        least = "one item" if self.minimum == 1 else f"{self.minimum} items"
        few = f"a list with at least {least}" if self.minimum else "a list"
        return f"{self.item.wanted} or {few}" if self.bare else few

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        if node.kind is not NodeKind.SEQUENCE and self.bare and node.kind is not NodeKind.MAPPING:
            single = self.item.read(node, path, reader)
            return Value((single,), single.source) if single else None
        if node.kind is not NodeKind.SEQUENCE or len(node.value) < self.minimum:
            reader.expected(node, path, self.wanted)
            return None
        items = [self.item.read(element, f"{path}[{index}]", reader) for index, element in enumerate(node.value)]
        self._check_unique(items, reader)
        return Value(tuple(element for element in items if element is not None), reader.source(node, path))

    def _check_unique(self, items: Sequence[Value | None], reader: ValueReader) -> None:
        first: dict[Any, Value] = {}
        for value in [element.get(self.unique) for element in items if element is not None and self.unique]:
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

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        if node.kind is not NodeKind.MAPPING:
            reader.expected(node, path, self.wanted)
            return None
        values: dict[str, Value] = {}
        for entry in node.value:
            if not entry.key.strip():
                reader.problem(entry, path, "expected a key, got an empty one")
                continue
            value = self.value.read(entry.node, join(path, entry.key), reader)
            if value is not None:
                values[entry.key] = value
        return Value(values, reader.source(node, path))

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.value.schema()}


@frozen
class Free:
    """Any value: whoever uses it validates it. With `mapping`, a mapping of any values."""

    mapping: bool = False

    @property
    def wanted(self) -> str:
        return "a mapping" if self.mapping else "any value"

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        if self.mapping and node.kind is not NodeKind.MAPPING:
            reader.expected(node, path, self.wanted)
            return None
        return _free(node, path, reader)

    def schema(self) -> dict[str, Any]:
        return {"type": "object"} if self.mapping else {}


def _free(node: SettingNode, path: str, reader: ValueReader) -> Value:
    data: Any
    if node.kind is NodeKind.MAPPING:
        data = {entry.key: _free(entry.node, join(path, entry.key), reader) for entry in node.value}
    elif node.kind is NodeKind.SEQUENCE:
        data = tuple(_free(element, f"{path}[{index}]", reader) for index, element in enumerate(node.value))
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

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        if self.short and node.text() is not None:
            whole = Entry(self.short, node.line, node.column, node)
            node = SettingNode(NodeKind.MAPPING, (whole,), node.line, node.column)
        if node.kind is not NodeKind.MAPPING:
            reader.expected(node, path, self.wanted)
            return None
        by_name = {key.name: key for key in self.keys}
        values: dict[str, Value] = {}
        for entry in node.value:
            value = self._entry(by_name, entry, path, reader)
            if value is not None:
                values[entry.key] = value
        written = {entry.key for entry in node.value}
        for key in self.keys:
            if key.required and key.name not in written:
                reader.problem(
                    node, path, f"expected the key {key.name!r} ({key.kind.wanted}), got a mapping without it"
                )
        return Value(values, reader.source(node, path))

    def _entry(self, by_name: Mapping[str, Key], entry: Entry, path: str, reader: ValueReader) -> Value | None:
        key = by_name.get(entry.key)
        inner = join(path, entry.key)
        if key is not None:
            return key.kind.read(entry.node, inner, reader)
        few = len(reader.problems) < _HINTED and len(entry.key) < _HINTED
        hint = self._hint(entry.key.replace("_", "-"), by_name) if few else ""
        known = hint or f" (known keys: {', '.join(by_name)})"
        reader.problem(entry, inner, f"expected a known key, got '{printable(entry.key)}'{known}")
        return None

    def _hint(self, written: str, by_name: Mapping[str, Key]) -> str:
        """What was meant: a key of one of the tables below before one of this table that looks like it."""
        for name, key in by_name.items():
            if isinstance(key.kind, Table) and any(inner.name == written for inner in key.kind.keys):
                return f" (did you mean '{name}.{written}'?)"
        return did_you_mean(written, by_name)

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
