"""Attributes that some versions lack: read them, or say that they are unknown. Never an exception, never a guess."""

from __future__ import annotations

from typing import Any


class _Unknown:
    """What a version of torch (or of a framework) does not say. False, and equal to nothing but itself."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


def first(source: Any, *names: str) -> Any:
    """
    The first of the attributes that can be read, else `UNKNOWN`.

    Not `getattr` with a default: torch has properties that raise AssertionError, which that does not swallow.
    """
    if source is None or source is UNKNOWN:
        return UNKNOWN
    for name in names:
        try:
            return getattr(source, name)
        except Exception:  # any property can raise anything
            continue
    return UNKNOWN


def known(value: Any, default: Any = None) -> Any:
    """The value, or `default` when it is unknown."""
    return default if value is UNKNOWN else value


def listed(value: Any) -> list[Any]:
    """The items of a sequence, an empty list when it is none, None or unknown."""
    if value is None or value is UNKNOWN:
        return []
    try:
        return list(value)
    except TypeError:
        return []


def as_bool(value: Any) -> bool | None:
    """True, False, or None when it is neither."""
    return value if isinstance(value, bool) else None


def enum_name(value: Any) -> str | None:
    """The name of an enum member, None when there is none."""
    name = first(value, "name")
    return name if isinstance(name, str) else None


def ints(value: Any) -> tuple[int, ...] | None:
    """A shape, coordinate or list of ranks as a tuple of integers; None when it is none."""
    try:
        return tuple(int(number) for number in value)
    except Exception:  # symbolic sizes, None, strangers
        return None


class Missing:
    """Collects the names of facts that turned out unknown while a record is built."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str, value: Any) -> Any:
        """`value`, or None when it is unknown; its name is then remembered."""
        if value is UNKNOWN:
            self.names.append(name)
            return None
        return value
