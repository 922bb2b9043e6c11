"""Live values as plain ones: numbers, strings, mappings, sequences. Never raises, never runs away."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ..facts import FrozenDict

DEPTH_LIMIT = 12
SIZE_LIMIT = 50_000
CUT = "<cut>"
_LARGEST = 2**63 - 1
_SECRET_KEYS = frozenset({"token", "use_auth_token", "auth_token", "hf_token", "access_token", "api_key", "password"})


def encodable(value: str) -> str:
    """The string, with what no JSON encoder takes (lone surrogates) written as escapes."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")


def plain(value: Any) -> Any:
    """
    Return `value` as plain data: None, bool, int, float, str, and frozen mappings and tuples of them.

    Anything else becomes `<its type>`, a torch dtype its name; what lies deeper than `DEPTH_LIMIT` or beyond
    `SIZE_LIMIT` values becomes `<cut>`. Numbers that JSON cannot hold become strings.
    """
    return _Plain().value(value, 0)


def plain_mapping(value: Any) -> FrozenDict | None:
    """Return a mapping (or what says that it is one) as plain data, None when it is none or cannot be read."""
    try:
        result = plain(value)
    except Exception:  # user classes can raise anything from items()
        return None
    return result if isinstance(result, FrozenDict) else None


class _Plain:
    def __init__(self) -> None:
        self.count = 0

    def value(self, value: Any, depth: int) -> Any:
        self.count += 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, enum.Enum):
            return self.value(value.value, depth + 1)
        if isinstance(value, str):
            return encodable(str(value))
        if isinstance(value, int):
            return int(value) if abs(value) <= _LARGEST else str(int(value))
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(float(value))
        if depth >= DEPTH_LIMIT or self.count >= SIZE_LIMIT:
            return CUT
        return self.container(value, depth + 1)

    def container(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self.mapping(value.items(), depth)
        if isinstance(value, (list, tuple)):
            return tuple(self.value(element, depth) for element in value[: max(0, SIZE_LIMIT - self.count)])
        if isinstance(value, (set, frozenset)):
            return tuple(sorted((self.value(element, depth) for element in value), key=repr))
        fields = getattr(type(value), "__dataclass_fields__", None)
        if fields is not None:
            return self.mapping(((name, getattr(value, name, None)) for name in fields), depth)
        if attrs.has(type(value)):
            names = [field.name for field in attrs.fields(type(value))]
            return self.mapping(((name, getattr(value, name, None)) for name in names), depth)
        return self.leaf(value)

    def mapping(self, items: Iterable[tuple[Any, Any]], depth: int) -> FrozenDict:
        kept: dict[str, Any] = {}
        for key, inner in items:
            if self.count >= SIZE_LIMIT:
                kept[CUT] = CUT
                break
            if not (isinstance(key, str) and key in _SECRET_KEYS):
                kept[encodable(str(key))] = self.value(inner, depth)
        return FrozenDict(kept)

    def leaf(self, value: Any) -> Any:
        kind = type(value)
        if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device", "layout"):
            return str(value).removeprefix("torch.")
        if kind.__module__ == "torch" and kind.__name__ == "Size":
            return tuple(int(size) for size in value)
        if isinstance(value, type):
            return f"{value.__module__}.{value.__qualname__}"
        return f"<{kind.__module__}.{kind.__qualname__}>"
