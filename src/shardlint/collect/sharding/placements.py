"""
Placements, told by what they carry: a dim, a split factor, or something that is not understood.

A placement is plain only when it carries exactly what a plain one does. One that carries more (section sizes, ragged
units, a mask) holds other elements than its dim alone says, and is `OTHER`: whatever needs to know what a rank holds
is then unknown, never guessed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from typing import Any

from ...boxes import OTHER, PARTIAL, REPLICATE, SHARD, STRIDED, Placement
from ...introspect.versioned import UNKNOWN, first

_NOTHING = frozenset[str]()
_TEXTS = (
    (SHARD, re.compile(r"_?(?:Shard|S)\((?:dim=)?(-?[0-9]+)\)")),
    (REPLICATE, re.compile(r"_?(?:Replicate\(\)|Replicate|R)")),
    (PARTIAL, re.compile(r"_?(?:Partial|P)\((?:reduce_op=)?'?\w*'?\)")),
)


def placement(live: Any) -> Placement:
    """What one placement (an object of any framework, or its text) does to a tensor."""
    if isinstance(live, str):
        return _of_text(live)
    text = _shown(live)
    for kind, matches in ((SHARD, _is_shard), (REPLICATE, _is_replicate), (PARTIAL, _is_partial)):
        if matches(live):
            return _shard(live, text) if kind == SHARD else _whole(live, kind, text)
    return Placement(OTHER, None, None, text)


def _of_text(text: str) -> Placement:
    for kind, pattern in _TEXTS:
        written = pattern.fullmatch(text.strip())
        if written is not None:
            return Placement(kind, int(written[1]) if kind == SHARD else None, None, text)
    return Placement(OTHER, None, None, text)


def _shown(live: Any) -> str:
    try:
        return repr(live)
    except Exception:  # a stranger's own code
        return f"<{type(live).__name__}>"


def _shard(live: Any, text: str) -> Placement:
    """A shard of a dim, plain or strided, when that is all that it carries."""
    dim, factor = whole_number(first(live, "dim")), first(live, "split_factor")
    strided = factor is not UNKNOWN and factor is not None
    pieces = whole_number(factor) if strided else None
    if dim is None or (strided and (pieces is None or pieces < 1)):
        return Placement(OTHER, None, None, text)
    if _carried(live) - {"dim", "split_factor"} or not (strided or _plainly_named(live)):
        return Placement(OTHER, None, None, text)
    return Placement(STRIDED, dim, pieces, text) if strided else Placement(SHARD, dim, None, text)


def _whole(live: Any, kind: str, text: str) -> Placement:
    """A replica or a summand; what a summand is reduced by does not change which elements it is about."""
    return Placement(kind if kind == PARTIAL or not _carried(live) else OTHER, None, None, text)


def _is_shard(live: Any) -> bool:
    return first(live, "split_factor") is not UNKNOWN or _is_called(live, "Shard") or _answers(live, "is_shard")


def _is_replicate(live: Any) -> bool:
    return _is_called(live, "Replicate") or _answers(live, "is_replicate")


def _is_partial(live: Any) -> bool:
    return type(live).__name__.endswith("Partial") or _answers(live, "is_partial")


def _is_called(live: Any, name: str) -> bool:
    return type(live).__name__.lstrip("_") == name


def _plainly_named(live: Any) -> bool:
    """Whether the name of the class leaves it a plain shard: a `PackedShard` cuts in a way of its own."""
    return _is_called(live, "Shard") or "shard" not in type(live).__name__.lower()


def _answers(live: Any, question: str) -> bool:
    asked = first(live, question)
    try:
        return callable(asked) and asked() is True
    except Exception:  # a stranger's own code
        return False


def _carried(live: Any) -> frozenset[str]:
    """The names of what the object carries and that says something, private spellings by their public name."""
    if type(live).__module__.partition(".")[0] == "torch":
        return _NOTHING  # torch's own classes are told apart by their names and factors
    return frozenset(name.strip("_") for name, value in _state(live) if not _says_nothing(value))


def _state(live: Any) -> Iterator[tuple[str, Any]]:
    """The object's own values, those in slots, and the layout that its class writes down for all its objects."""
    yield from getattr(live, "__dict__", {}).items()
    for base in type(live).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield name, first(live, name)
        if base.__module__.partition(".")[0] not in ("torch", "builtins", "enum"):
            yield from ((name, value) for name, value in base.__dict__.items() if _is_layout(name, value))


def _is_layout(name: str, value: Any) -> bool:
    """Whether what a class defines is data that every object of it carries, and no method or flag."""
    return isinstance(value, (int, tuple, list, dict)) and not isinstance(value, bool) and not name.startswith("__")


def _says_nothing(value: Any) -> bool:
    return value is None or value is UNKNOWN


def whole_number(value: Any) -> int | None:
    """The value as an integer; None when it is none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except Exception:  # UNKNOWN, a method, a stranger's own code
        return None
