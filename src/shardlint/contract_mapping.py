"""Contracts from plain data: the part of a configuration file that declares them, read with every problem named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .contract import OPEN_FIELDS, SHORT_FORMS, Contract
from .contract_values import ContractError, setting_of
from .names import did_you_mean


def read_contract(data: Mapping[str, Any], where: str) -> Contract:
    """Build the contract that `data` describes. Raises `ContractError` with every problem."""
    reader = _Reader()
    contract = reader.build(Contract, data, where)
    if reader.problems or contract is None:
        place, problem = reader.problems[0]
        raise ContractError(place, problem, reader.problems)
    return contract  # type: ignore[no-any-return]


class _Reader:
    """Builds attrs objects from mappings; goes on after a problem, so that all of them are told at once."""

    def __init__(self) -> None:
        self.problems: list[tuple[str, str]] = []

    def build(self, kind: type, data: Any, where: str) -> Any:
        if kind in SHORT_FORMS and isinstance(data, str):
            data = {SHORT_FORMS[kind]: data}
        if not isinstance(data, Mapping):
            self.problems.append((where, f"expected a mapping, got {data!r} ({type(data).__name__})"))
            return None
        if kind in OPEN_FIELDS:
            data = {"fields": {str(key): value for key, value in data.items() if key != "name"}} | _only(data, "name")
        values = self._values(kind, data, where)
        before = len(self.problems)
        for field in attrs.fields(kind):
            if field.default is attrs.NOTHING and field.name not in values:
                self.problems.append((where, f"expected the key {_spelt(field.name)!r}, which is missing"))
        if len(self.problems) > before:
            return None
        return self._construct(kind, values, where)

    def _values(self, kind: type, data: Mapping[Any, Any], where: str) -> dict[str, Any]:
        known = {attribute.name: attribute for attribute in attrs.fields(kind)}
        values: dict[str, Any] = {}
        for key, value in data.items():
            name = str(key).replace("-", "_")
            place = f"{where}.{key}"
            if name not in known:
                spelt = sorted(map(_spelt, known))
                hint = did_you_mean(str(key), spelt)
                self.problems.append((place, f"unknown key{hint}; expected one of {', '.join(spelt)}"))
                continue
            setting = setting_of(known[name]) if kind not in OPEN_FIELDS else None
            if setting is None or setting.part is None:
                values[name] = value
            elif setting.kind == "parts":
                values[name] = self._sequence(setting.part, value, place)
            else:
                values[name] = None if value is None else self.build(setting.part, value, place)
        return values

    def _sequence(self, kind: type, value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            self.problems.append((where, f"expected a list, got {value!r} ({type(value).__name__})"))
            return ()
        built = [self.build(kind, item, f"{where}[{index}]") for index, item in enumerate(value)]
        return tuple(item for item in built if item is not None)

    def _construct(self, kind: type, values: dict[str, Any], where: str) -> Any:
        try:
            return kind(**values)
        except ContractError as error:
            name = error.where.rpartition(".")[2]
            self.problems.append((f"{where}.{_spelt(name)}" if name else where, error.problem))
        return None


def _only(data: Mapping[Any, Any], key: str) -> dict[str, Any]:
    return {key: data[key]} if key in data else {}


def _spelt(name: str) -> str:
    return name.replace("_", "-")
