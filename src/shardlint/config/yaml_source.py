"""
Read YAML into positioned nodes, from the parser's events, so that nothing is guessed and nothing expands.

An unquoted scalar stays text until a reader that knows its type asks, so `off` is not a boolean and a date is not an
object. Duplicate keys, tags, merge keys, several documents and recursive aliases are refused; aliases share their
node, and what they stand for is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from ..names import printable
from .nodes import MAX_DEPTH, MAX_NODES, Entry, NodeKind, RefusedError, SettingNode, Text
from .problems import ConfigProblem

# Compiled on first use: it is dear, and most runs read no YAML.
_FORBIDDEN = "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
_TOO_DEEP = f"expected at most {MAX_DEPTH} levels of nesting, got more"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: Text) -> tuple[SettingNode, list[ConfigProblem]]:
    """
    The node of the one document, and a problem for each duplicate key.

    Raises `RefusedError` when the text is not a YAML that a configuration may be.
    """
    bad = re.search(_FORBIDDEN, text.text)
    if bad:
        before = text.text[: bad.start()]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        character = printable(bad.group())
        raise RefusedError(text.problem(line, column, "", f"expected printable characters, got {character}"))
    builder = _Builder(text)
    try:
        return builder.document(), builder.problems
    except yaml.MarkedYAMLError as error:
        raise RefusedError(_syntax(text, error)) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        message = f"expected YAML, got text that the parser refuses ({type(error).__name__})"
        raise RefusedError(text.problem(0, 0, "", message)) from None


def _syntax(text: Text, error: yaml.MarkedYAMLError) -> ConfigProblem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    shown = text.lines[line - 1] if 0 < line <= len(text.lines) else ""
    if "\t" in shown[:column] and not shown[: shown.rfind("\t", 0, column)].strip():
        column = shown.index("\t") + 1
        return text.problem(line, column, "", "expected spaces for indentation, got a tab")
    if "maximum nesting depth" in (error.problem or ""):
        return text.problem(line, column, "", _TOO_DEEP)
    details = ", ".join(printable(part) for part in (error.context, error.problem) if part)
    return text.problem(line, column, "", f"expected valid YAML, got a syntax error: {details}")


class _Builder:
    """Builds nodes from events."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.problems: list[ConfigProblem] = []
        self.anchors: dict[str, SettingNode | None] = {}  # None while the anchored node is being built
        self.total = 0
        self.events: Iterator[Any] = yaml.parse(text.text, Loader=_LOADER)

    def document(self) -> SettingNode:
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                root = self.node(next(self.events), 0)
                self._end()
                return SettingNode(NodeKind.MAPPING, ()) if root.is_null and not root.value else root
        return SettingNode(NodeKind.MAPPING, ())  # nothing but comments: a file that sets nothing

    def _end(self) -> None:
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                raise self._refused(event, "expected one document, got a second one")

    def node(self, event: Any, depth: int) -> SettingNode:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        self._count(event, 1)
        if depth > MAX_DEPTH:
            raise self._refused(event, _TOO_DEEP)
        if event.tag is not None:
            raise self._refused(event, f"expected a plain value, got the tag {printable(event.tag)}")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        node = self._plain_node(event, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _plain_node(self, event: Any, depth: int) -> SettingNode:
        place = _place(event)
        if isinstance(event, yaml.ScalarEvent):
            self._check_characters(event)
            plain = event.style in (None, "")
            return SettingNode(NodeKind.PLAIN if plain else NodeKind.STRING, event.value, *place)
        if isinstance(event, yaml.SequenceStartEvent):
            items = tuple(self.node(element, depth + 1) for element in self._until(yaml.SequenceEndEvent))
            return SettingNode(NodeKind.SEQUENCE, items, *place, 1 + sum(element.size for element in items))
        entries = tuple(self._entries(depth))
        return SettingNode(NodeKind.MAPPING, entries, *place, 1 + sum(1 + entry.node.size for entry in entries))

    def _until(self, end: type) -> Iterator[Any]:
        while not isinstance(event := next(self.events), end):
            yield event

    def _entries(self, depth: int) -> Iterator[Entry]:
        seen: dict[str, int] = {}
        for event in self._until(yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise self._refused(event, "expected a plain key, got something else")
            if event.value == "<<" and event.style in (None, ""):
                raise self._refused(event, "expected a plain key, got a merge key; `extends` shares settings")
            self._check_characters(event)
            self._count(event, 1)
            line, column = _place(event)
            value = self.node(next(self.events), depth + 1)
            if event.value in seen:
                message = f"expected each key once, got it again (first at line {seen[event.value]})"
                self.problems.append(self.text.problem(line, column, event.value, message))
                continue
            seen[event.value] = line
            yield Entry(event.value, line, column, value)

    def _alias(self, event: Any) -> SettingNode:
        node = self.anchors.get(event.anchor)
        name = printable(event.anchor)
        if event.anchor not in self.anchors:
            raise self._refused(event, f"expected an anchor that is defined above, got the alias *{name}")
        if node is None:
            raise self._refused(event, f"expected a value, got the alias *{name} inside the value that it names")
        self._count(event, node.size)
        return node

    def _check_characters(self, event: Any) -> None:
        """Escapes in double quotes can write what the text itself may not hold."""
        bad = re.search(_FORBIDDEN, event.value)
        if bad:
            raise self._refused(event, f"expected printable characters, got {printable(bad.group())}")

    def _count(self, event: Any, size: int) -> None:
        self.total += size
        if self.total > MAX_NODES:
            raise self._refused(event, f"expected at most {MAX_NODES} values with all aliases expanded, got more")

    def _refused(self, event: Any, message: str) -> RefusedError:
        return RefusedError(self.text.problem(*_place(event), "", message))


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1
