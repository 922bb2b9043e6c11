"""The tensors that count: sharded parameters of units, parameters of no unit, flat parameters, buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from ..facts import OwnershipFacts
from ..introspect.attributes import read
from ..introspect.versioned import UNKNOWN, first
from ..introspect.walk import WalkedTensor
from ..names import natural_key
from .sharding import OwnershipTables


@frozen(kw_only=True)
class LiveTensor:
    """
    A parameter or buffer by identity, with all its names in natural order.

    `records` are its ownership records, empty for flat parameters and buffers.
    """

    identity: int
    names: tuple[str, ...]
    tensor: Any
    kind: str
    records: tuple[OwnershipFacts, ...] = ()


def is_tensor(value: Any) -> bool:
    """Whether the value has a shape, a dtype and a device, as tensors and their stand-ins have."""
    return all(first(value, name) not in (UNKNOWN, None) for name in ("shape", "dtype", "device"))


def live_parameters(tables: OwnershipTables) -> Iterator[LiveTensor]:
    """
    Every live parameter once, in the order of `parameters()`: within a step too, the sharded one of a unit.

    FSDP1 without original parameters has flat ones instead, which come last.
    """
    records: dict[int, list[OwnershipFacts]] = {}
    for record in tables.records:
        if not record.replaced:
            records.setdefault(record.identity, []).append(record)
    order = {name: place for place, walked in enumerate(tables.walk.tensors) for name in walked.names}
    last = len(order)
    seen = set()
    for identity in sorted(records, key=lambda key: min(order.get(record.fqn, last) for record in records[key])):
        tensor = tables.objects.get(identity)
        if is_tensor(tensor):
            seen.add(identity)
            same = records[identity]
            yield _live(identity, [record.fqn for record in same], tensor, "parameter", same)
    for walked in tables.walk.tensors:
        if walked.kind == "parameter" and _is_flat(walked) and tables.identity(walked.tensor) not in seen:
            yield _live(tables.identity(walked.tensor), walked.names, walked.tensor, "parameter", [])


def live_buffers(tables: OwnershipTables) -> Iterator[LiveTensor]:
    """Every registered buffer once, in walk order."""
    for tensor in tables.walk.tensors:
        if tensor.kind != "parameter" and is_tensor(tensor.tensor):
            yield _live(tables.identity(tensor.tensor), tensor.names, tensor.tensor, "buffer", [])


def _live(identity: int, names: list[str], tensor: Any, kind: str, records: list[OwnershipFacts]) -> LiveTensor:
    ordered = tuple(sorted(dict.fromkeys(names), key=natural_key)) if len(names) > 1 else tuple(names)
    return LiveTensor(identity=identity, names=ordered, tensor=tensor, kind=kind, records=tuple(records))


def _is_flat(walked: WalkedTensor) -> bool:
    kinds = (base.__name__ for base in type(walked.tensor).__mro__)
    return "FlatParameter" in kinds or bool(read(walked.tensor, "_is_flat_param", False))
