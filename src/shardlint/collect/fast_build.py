"""
Building frozen facts fast: field by field, frozen when done.

The constructor of a frozen attrs class sets each field through `object.__setattr__`, which takes most of the time that
the facts of a large model take. Plain assignment to the same slots takes a fifth of it.
"""

from __future__ import annotations

from typing import Any, TypeVar

_Facts = TypeVar("_Facts")
_CLASSES: dict[type[Any], type[Any]] = {}


def open_class(kind: type[Any]) -> type[Any]:
    """A subclass of `kind` with the same slots, of which the fields can be assigned."""
    opened = _CLASSES.get(kind)
    if opened is None:
        opened = _CLASSES[kind] = _derived(kind)
    return opened


def _derived(kind: type[Any]) -> type[Any]:
    # Both: the two share one slot of the type, and assignment is fast only when neither is a Python function.
    plain = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(f"_Open{kind.__name__}", (kind,), {"__slots__": (), **plain})


def opened(kind: type[Any]) -> Any:
    """Return an instance of `kind` of which no field is set yet. Set every one of them, then call `sealed`."""
    return object.__new__(open_class(kind))


def sealed(facts: Any, kind: type[_Facts]) -> _Facts:
    """Make an opened instance what it is for everybody else: an instance of `kind`, frozen."""
    facts.__class__ = kind
    return facts  # type: ignore[no-any-return]
