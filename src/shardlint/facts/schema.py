"""
The JSON Schema of facts files, made from the attrs classes.

`msgspec.json.schema` would do, but for defaults that are `FrozenDict`s, which it cannot write.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Sequence
from typing import Any

import attrs
import msgspec

from .frozen import FrozenDict, thaw
from .snapshot import FACTS_VERSION, Facts

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    FrozenDict: {"type": "object"},
    Any: {},
}


def facts_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of facts files of this version."""
    definitions: dict[str, Any] = {}
    root = _schema_of(Facts, definitions)
    facts = definitions[Facts.__name__]
    facts["properties"]["version"] = {"const": FACTS_VERSION}
    facts["required"] = ["version", *facts.get("required", ())]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"shardlint facts, version {FACTS_VERSION}",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def facts_schema_text() -> str:
    """Return the schema as the text of `schema.json`, the file that is shipped with this module."""
    return json.dumps(facts_schema(), indent=2) + "\n"


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of(member, definitions) for member in arguments]}
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if origin is tuple:
        members = [_schema_of(member, definitions) for member in arguments]
        return {"type": "array", "prefixItems": members, "items": False, "minItems": len(members)}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if isinstance(kind, type) and (attrs.has(kind) or issubclass(kind, msgspec.Struct)):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # a class may contain itself
            definitions[kind.__name__].update(_object_schema(kind, definitions))
        return {"$ref": f"#/$defs/{kind.__name__}"}
    raise TypeError(f"facts have no fields of type {kind!r}: JSON would not bring it back")


def _object_schema(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    members = _members(kind)
    properties = {member.name: _schema_of(hints[member.name], definitions) | _default(member) for member in members}
    required = [member.name for member in members if member.default in (attrs.NOTHING, msgspec.NODEFAULT)]
    return {
        "type": "object",
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _members(kind: Any) -> Sequence[Any]:
    """The fields of an attrs class, or of the structs that facts hold by the hundred thousand."""
    if issubclass(kind, msgspec.Struct):
        return msgspec.structs.fields(kind)
    return [field for field in attrs.fields(kind) if field.init]


def _default(item: Any) -> dict[str, Any]:
    if item.default in (attrs.NOTHING, msgspec.NODEFAULT) or isinstance(item.default, attrs.Factory):  # type: ignore[arg-type]
        return {}
    return {"default": thaw(item.default)}
