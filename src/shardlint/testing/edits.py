"""Small edits of a snapshot, written as data: set, add and drop at a path into the facts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..facts import Facts
from ..facts.codec import decode_facts, encode_facts

_TOKEN = re.compile(
    r"""\.?(?P<name>[A-Za-z_]\w*)
      | \["(?P<quoted>[^"]*)"\]
      | \[(?P<position>\d+)\]
      | \[(?P<field>\w+)(?P<how>[=~])(?P<value>[^\]]*)\]""",
    re.VERBOSE,
)


class EditError(ValueError):
    """An edit that cannot be read, or that finds nothing to edit."""


def apply_edits(facts: Facts, edits: Iterable[Mapping[str, Any]]) -> Facts:
    """
    Return `facts` after `edits`, each a mapping with one of `set` (and `to`), `add` (and `item`), `drop`.

    A path is dotted names; `[3]` is a position, `["a.b"]` a key of a mapping, `[key=a.b]` every item of a list whose
    field is that text, `[key~a.*]` every item whose field matches the glob. `drop` of a whole section makes it absent.
    Raises `EditError` when an edit is malformed or its path leads nowhere, and what `decode_facts` raises when the
    result is not a snapshot.
    """
    tree = json.loads(encode_facts(facts))
    for edit in edits:
        _apply(tree, edit)
    return decode_facts(json.dumps(tree).encode(), references=False)


def _apply(tree: Any, edit: Mapping[str, Any]) -> None:
    keys = set(edit)
    if keys == {"set", "to"}:
        for holder, key in _slots(tree, edit["set"], create=True):
            holder[key] = edit["to"]
    elif keys == {"add", "item"}:
        for holder, key in _slots(tree, edit["add"]):
            if not isinstance(holder[key], list):
                raise EditError(f"add: expected a list at {edit['add']!r}, found {type(holder[key]).__name__}")
            holder[key].append(edit["item"])
    elif keys == {"drop"}:
        for holder, key in reversed(list(_slots(tree, edit["drop"]))):
            del holder[key]
    else:
        raise EditError(f"expected set/to, add/item or drop, got {', '.join(sorted(keys))}")


def _slots(tree: Any, path: str, *, create: bool = False) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) that `path` names. `create` allows the last key to be new to its mapping."""
    tokens = list(_tokens(path))
    nodes = [tree]
    for number, token in enumerate(tokens):
        last = number == len(tokens) - 1
        slots = [slot for node in nodes for slot in _step(node, token, create=create and last)]
        if not slots:
            raise EditError(f"{path!r} leads nowhere: nothing at {token.group(0)!r}")
        if last:
            yield from slots
        nodes = [holder[key] for holder, key in slots]


def _tokens(path: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(path):
        token = _TOKEN.match(path, position)
        if token is None:
            raise EditError(f"cannot read the path {path!r} from {path[position:]!r} on")
        yield token
        position = token.end()


def _step(node: Any, token: re.Match[str], *, create: bool) -> Iterator[tuple[Any, Any]]:
    name = token["name"] if token["name"] is not None else token["quoted"]
    if name is not None and isinstance(node, dict):
        if create or name in node:
            yield node, name
    elif token["position"] is not None and isinstance(node, list):
        if int(token["position"]) < len(node):
            yield node, int(token["position"])
    elif token["field"] is not None and isinstance(node, list):
        for number, element in enumerate(node):
            if _matches(str(element.get(token["field"])), token["how"], token["value"]):
                yield node, number


def _matches(text: str, how: str, value: str) -> bool:
    return text == value if how == "=" else fnmatchcase(text, value)
