"""What a loader passes over in silence and headers can show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..facts import EntryFacts

INTEGERS = frozenset({"I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL"})


def integer_cast(entry: EntryFacts, live_dtype: str) -> str:
    """Say that the stored integers of `entry` become floating-point values, or nothing."""
    if entry.dtype in INTEGERS and "float" in live_dtype:
        return f"stored as {entry.dtype}, cast to {live_dtype} without a scale"
    return ""


def numbering(parts: Sequence[tuple[str, EntryFacts]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """
    Yield, for every pattern with a `*`, what is wrong with the numbers behind it, and the keys.

    The numbers must run from 0 without a gap, because the loader takes the tensors in order and ignores the numbers.
    """
    by_pattern: dict[str, list[str]] = {}
    for pattern, entry in parts:
        if "*" in pattern:
            by_pattern.setdefault(pattern, []).append(entry.key)
    for keys in by_pattern.values():
        numbers = _numbers(keys)
        if numbers is not None and numbers != list(range(len(numbers))):
            absent = sorted(set(range(max(numbers) + 1)) - set(numbers))[:5] if max(numbers) < 10**6 else []
            what = f"the first absent ones are {absent}" if absent else "some are there twice"
            yield (
                f"{len(numbers)} tensors numbered {numbers[0]}..{numbers[-1]}, {what}; taken as 0..{len(numbers) - 1}",
                tuple(keys),
            )


def odd_shapes(parts: Sequence[tuple[str, EntryFacts]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """
    Yield, for every pattern with a `*` whose tensors do not all have one shape, what differs, and the odd keys.

    The shape that most of them have is taken as meant; where none is the commonest, all are named.
    """
    by_pattern: dict[str, list[EntryFacts]] = {}
    for pattern, entry in parts:
        if "*" in pattern:
            by_pattern.setdefault(pattern, []).append(entry)
    for entries in by_pattern.values():
        (usual, count), *others = Counter(entry.shape for entry in entries).most_common()
        if not others:
            continue
        odd = entries if others[0][1] == count else [entry for entry in entries if entry.shape != usual]
        shown = ", ".join(f"{entry.key} is {list(entry.shape)}" for entry in odd[:4])
        more = f" and {len(odd) - 4} more" if len(odd) > 4 else ""
        rest = "" if odd is entries else f"; the other {len(entries) - len(odd)} of its like are {list(usual)}"
        yield f"{shown}{more}{rest}", tuple(entry.key for entry in odd)


def _numbers(keys: Sequence[str]) -> list[int] | None:
    """Return the number of each key at the only position where the keys differ, None when there is none such."""
    rows = [key.split(".") for key in keys]
    if len(rows) < 2 or len({len(row) for row in rows}) != 1:
        return None
    varying = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    if len(varying) != 1 or not all(part.isdecimal() and len(part) < 10 for part in varying[0]):
        return None
    return [int(part) for part in varying[0]]
