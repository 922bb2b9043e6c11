"""How rules say numbers of things."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return `1 tensor`, `2 tensors`: `one` after 1, else `many` (without it `one` with an s)."""
    return f"{number} {one if number == 1 else many or one + 's'}"
