"""Immutable values: what facts are made of when a plain attrs class is not enough."""

from __future__ import annotations

import enum
import math
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any


class FrozenDict(Mapping[str, Any]):
    """
    A mapping that cannot be changed and keeps the order of its keys.

    Built from any mapping with string keys; nested mappings and lists are frozen as well (see `freeze`).
    Raises `TypeError` for keys that are not strings.
    """

    __slots__ = ("_hash", "_items")

    _items: dict[str, Any]
    _hash: int | None

    def __init__(self, items: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        merged = {**(items or {}), **more}
        for key in merged:
            if not isinstance(key, str):
                raise TypeError(f"a FrozenDict takes string keys, got {key!r} ({type(key).__name__})")
        object.__setattr__(self, "_items", {key: freeze(value) for key, value in merged.items()})
        object.__setattr__(self, "_hash", None)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a FrozenDict is immutable, cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a FrozenDict is immutable, cannot delete {name!r}")

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, `default` without it."""
        return self._items.get(key, default)

    # The views of the inner dict are as read-only as those of Mapping and several times as fast.
    def keys(self) -> KeysView[str]:
        """The keys, a read-only view."""
        return self._items.keys()

    def values(self) -> ValuesView[Any]:
        """The values, a read-only view."""
        return self._items.values()

    def items(self) -> ItemsView[str, Any]:
        """The pairs of key and value, a read-only view."""
        return self._items.items()

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(tuple(sorted(self._items.items(), key=lambda item: item[0]))))
        assert self._hash is not None
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenDict):
            return self._items == other._items
        return self._items == other if isinstance(other, dict) else NotImplemented

    def __repr__(self) -> str:
        return f"FrozenDict({self._items!r})"

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return (FrozenDict, (self._items,))


_PLAIN = frozenset({str, int, bool, type(None)})
_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def freeze(value: Any) -> Any:
    """
    Return `value` with every mapping turned into a `FrozenDict` and every list, tuple or set into a tuple.

    Keys become strings. NaN and infinities become the texts `NaN`, `Infinity`, `-Infinity`: JSON has no others, and
    a NaN would not even equal itself. Subclasses of str, int and float become what they are based on.

    Raises `TypeError` for anything that is not a plain value (None, bool, number, string) or container of them, and for
    two keys that are the same string.
    """
    if type(value) in _PLAIN or isinstance(value, FrozenDict):
        return value
    if isinstance(value, enum.Enum):
        return freeze(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _NON_FINITE[str(float(value))]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (list, tuple)):
        return tuple([freeze(item) for item in value])
    if isinstance(value, Mapping):
        return _freeze_mapping(value)
    if isinstance(value, (set, frozenset)):
        return tuple(freeze(item) for item in sorted(value, key=repr))
    raise TypeError(
        f"expected a plain value (None, bool, number, string, mapping, sequence), got {type(value).__name__}"
    )


def _freeze_mapping(value: Mapping[Any, Any]) -> FrozenDict:
    items = {str(freeze(key)): item for key, item in value.items()}
    if len(items) != len(value):
        raise TypeError(f"two keys of a mapping are the same as strings: {list(value)!r}")
    return FrozenDict(items)


def thaw(value: Any) -> Any:
    """Return `value` as plain dicts and lists, ready for any JSON encoder."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in value]
    return value


EMPTY = FrozenDict()
