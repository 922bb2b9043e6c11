"""The settings of a contract, made from the fields of the classes that contracts are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import attrs

from ..contract import COMPARISONS, OPEN_FIELDS, SHORT_FORMS, Contract
from ..contract_values import IMPORT_PATH, Setting, setting_of
from .kinds import Boolean, Choice, Integer, NumberOrName, String
from .tables import Key, ListOf, MapOf, Table
from .values import ValueKind

_PATH = IMPORT_PATH.pattern.removesuffix(r"\Z")


def _import_path(text: str) -> str:
    if not re.fullmatch(_PATH, text, re.ASCII):
        raise ValueError(f"expected package.module:name, got {text!r}")
    return text


_NAME = String(wanted="a name")
_GLOB = String(wanted="a glob")
_KINDS: dict[str, ValueKind] = {
    "name": _NAME,
    "glob": _GLOB,
    "names": ListOf(item=_NAME, bare=True),
    "globs": ListOf(item=_GLOB, bare=True),
    "some globs": ListOf(item=_GLOB, bare=True, minimum=1),
    "flag": Boolean(),
    "import": String(wanted="package.module:name", check=_import_path, pattern=f"^{_PATH}$"),
    "names by name": MapOf(value=ListOf(item=_NAME, bare=True, minimum=1)),
    "globs by name": MapOf(value=ListOf(item=_GLOB, bare=True, minimum=1)),
    "groups": ListOf(item=ListOf(item=_GLOB, minimum=2)),
    "shapes by glob": MapOf(value=ListOf(item=Integer(minimum=1), minimum=1)),
    "number or name": NumberOrName("a number or a configuration key"),
    "size": Integer(minimum=1),
    "comparison": Choice(COMPARISONS),
}


def contract_table() -> Table:
    """The table of the setting `contract`."""
    return _table(Contract)


def _table(kind: type) -> Table:
    return Table((*_keys(kind), *_open_keys(kind)), short=SHORT_FORMS.get(kind, ""))


def _keys(kind: type) -> Iterator[Key]:
    for attribute in attrs.fields(kind):
        if "setting" in attribute.metadata:
            setting = setting_of(attribute)
            required = attribute.default is attrs.NOTHING or setting.kind.startswith("some ")
            yield Key(
                attribute.name.replace("_", "-"),
                _value_kind(setting),
                setting.meaning,
                required=required,
                default=_default(attribute),
            )


def _open_keys(kind: type) -> Iterator[Key]:
    for item in OPEN_FIELDS.get(kind, ()):
        default = "numeric" if item.kind == "comparison" else None
        yield Key(item.name, _KINDS[item.kind], item.meaning, required=item.required, default=default)


def _value_kind(setting: Setting) -> ValueKind:
    if setting.kind == "choice":
        return Choice(setting.choices)
    if setting.kind == "choices":
        return ListOf(item=Choice(setting.choices), bare=True)
    if setting.part is not None:
        table = _table(setting.part)
        return table if setting.kind == "part" else ListOf(item=table, unique=setting.unique)
    return _KINDS[setting.kind]


def _default(attribute: attrs.Attribute[Any]) -> Any:
    """What the reference shows as the default: that of flags and words, nothing for what is empty."""
    value = attribute.default
    return value if isinstance(value, (bool, str)) and value != "" else None
