"""Values that were read, where they stand, and what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from attrs import field, frozen

from ..engine.source import DEFAULT, SettingSource
from .nodes import Entry, SettingNode, Text
from .problems import ConfigProblem


@frozen
class Value:
    """A value that was read and where it stands. `data` is a dict or tuple of values, or a plain scalar."""

    data: Any
    source: SettingSource = DEFAULT

    def plain(self) -> Any:
        """The data alone, as dicts, tuples and scalars."""
        if isinstance(self.data, dict):
            return {key: value.plain() for key, value in self.data.items()}
        return tuple(value.plain() for value in self.data) if isinstance(self.data, tuple) else self.data

    def leaves(self, path: str = "") -> Iterator[tuple[str, Value]]:
        """Every scalar and every empty collection below, with its dotted path."""
        if isinstance(self.data, dict) and self.data:
            for key, value in self.data.items():
                yield from value.leaves(join(path, key))
        elif isinstance(self.data, tuple) and self.data:
            for index, value in enumerate(self.data):
                yield from value.leaves(f"{path}[{index}]")
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
class ValueReader:
    """Reads the nodes of one file: knows its text and folder, and collects the problems."""

    text: Text
    folder: Path
    problems: list[ConfigProblem] = field(factory=list)

    def source(self, node: SettingNode, path: str) -> SettingSource:
        """Where a node stands."""
        return SettingSource(self.text.file, node.line, node.column, path)

    def problem(self, node: SettingNode | Entry, path: str, message: str) -> None:
        """Note a problem at a node or key."""
        self.problems.append(self.text.problem(node.line, node.column, path, message))

    def expected(self, node: SettingNode, path: str, wanted: str) -> None:
        """Note that something else was expected than what is there."""
        self.problem(node, path, f"expected {wanted}, got {node.describe()}")


class ValueKind(Protocol):
    """A kind of value."""

    @property
    def wanted(self) -> str:
        """What is expected, in words."""

    def read(self, node: SettingNode, path: str, reader: ValueReader) -> Value | None:
        """The value of the node, None after noting a problem."""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the value."""
