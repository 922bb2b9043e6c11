"""
Facts that are not known: a value of their own, which raises when it is used.

A collector that cannot find something out writes `Unknown("why")` in its place. A rule that uses the value in any way
raises `UnknownFact`, and the engine counts the subject as not judged: what is not known is never clean.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeGuard, TypeVar

import attrs

T = TypeVar("T")


class UnknownFact(Exception):  # noqa: N818 - it is no error: the run goes on, and says what was not known
    """A fact that is not known was used. The text says why it is not known."""


class NotEvaluated(UnknownFact):
    """Raised by a rule that finds out, while it judges, that it lacks a fact. The text says which."""


@attrs.frozen(eq=False, repr=False)
class Unknown:
    """
    A fact that is not known, and why. Using it in any way raises `UnknownFact`; `is` and `isinstance` are free.

    Two of them are equal when their reasons are, so that facts can be compared. Hashing is using: looking one up in a
    set never says "not among them". In JSON it is an object with the one key `unknown`.
    """

    unknown: str

    def _used(self, *_: object) -> NoReturn:
        raise UnknownFact(self.unknown)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Unknown):
            return self.unknown == other.unknown
        raise UnknownFact(self.unknown)

    def __hash__(self) -> int:  # what is looked up in a set, or kept as a key, is used
        raise UnknownFact(self.unknown)

    def __repr__(self) -> str:
        return f"Unknown({self.unknown!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks every object for is no use of the fact
            raise AttributeError(name)
        raise UnknownFact(self.unknown)

    def __bool__(self) -> bool:
        raise UnknownFact(self.unknown)

    def __iter__(self) -> Any:
        self._used()

    def __len__(self) -> int:
        raise UnknownFact(self.unknown)

    def __contains__(self, _: object) -> bool:
        self._used()

    def __getitem__(self, _: object) -> Any:
        self._used()

    def __lt__(self, _: object) -> bool:
        self._used()

    def __le__(self, _: object) -> bool:
        self._used()

    def __gt__(self, _: object) -> bool:
        self._used()

    def __ge__(self, _: object) -> bool:
        self._used()

    def __add__(self, _: object) -> Any:
        self._used()

    def __radd__(self, _: object) -> Any:
        self._used()

    def __sub__(self, _: object) -> Any:
        self._used()

    def __rsub__(self, _: object) -> Any:
        self._used()

    def __mul__(self, _: object) -> Any:
        self._used()

    def __rmul__(self, _: object) -> Any:
        self._used()

    def __mod__(self, _: object) -> Any:
        self._used()

    def __floordiv__(self, _: object) -> Any:
        self._used()

    def __truediv__(self, _: object) -> Any:
        self._used()

    def __neg__(self) -> Any:
        self._used()

    def __int__(self) -> int:
        self._used()

    def __float__(self) -> float:
        self._used()

    def __index__(self) -> int:
        raise UnknownFact(self.unknown)

    def __str__(self) -> str:
        raise UnknownFact(self.unknown)

    def __format__(self, _: str) -> str:
        self._used()


def known(value: T | Unknown) -> T:
    """Return `value`. Raises `UnknownFact` when it is not known."""
    if isinstance(value, Unknown):
        raise UnknownFact(value.unknown)
    return value


def is_known(value: T | Unknown) -> TypeGuard[T]:
    """Whether `value` is known. Looking does not count as using it."""
    return not isinstance(value, Unknown)
