"""Contracts from plain data: the part of a configuration file that declares them, read with every problem named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .contract import (
    Contract,
    ContractError,
    DataSemantics,
    Invariant,
    ParityCase,
    Probe,
    Recipe,
    Replacement,
    SharedState,
    TopologyConstraint,
)
from .names import did_you_mean

_PARTS: dict[str, type] = {
    "probes": Probe,
    "invariants": Invariant,
    "shared_state": SharedState,
    "topology": TopologyConstraint,
    "parity_cases": ParityCase,
    "replacements": Replacement,
    "recipes": Recipe,
}
_OPEN = (TopologyConstraint, ParityCase)  # beside the name they take any field
_SHORT = {Probe: "glob", Replacement: "pattern"}  # what a bare string in place of the mapping means


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
        if kind in _SHORT and isinstance(data, str):
            data = {_SHORT[kind]: data}
        if not isinstance(data, Mapping):
            self.problems.append((where, f"expected a mapping, got {data!r} ({type(data).__name__})"))
            return None
        if kind in _OPEN:
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
        known = {field.name for field in attrs.fields(kind)}
        values: dict[str, Any] = {}
        for key, value in data.items():
            name = str(key).replace("-", "_")
            place = f"{where}.{key}"
            if name not in known:
                spelt = sorted(map(_spelt, known))
                hint = did_you_mean(str(key), spelt)
                self.problems.append((place, f"unknown key{hint}; expected one of {', '.join(spelt)}"))
            elif kind is Contract and name in _PARTS:
                values[name] = self._sequence(_PARTS[name], value, place)
            elif kind is Contract and name == "data":
                values[name] = None if value is None else self.build(DataSemantics, value, place)
            else:
                values[name] = value
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
