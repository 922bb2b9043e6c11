"""The report of a verification for a reader: the verdict, the figures and the worst rows, in lines of a width."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from ..names import counted, printable
from .result import Result, Row, RowKind, RowStatus

WIDTH = 100
LIMIT = 50
EVERYWHERE = "the rows of the result"


def as_text(result: Result, limit: int = LIMIT, width: int = WIDTH, table: str = EVERYWHERE) -> str:
    """
    The verdict, the figures and a table of the worst rows, with each first difference, in lines of `width` columns.

    `table` is where a reader finds all rows when there are more than `limit`.
    """
    return "".join(_wrapped(line, width) + "\n" for line in _lines(result, limit, table))


def _wrapped(line: str, width: int) -> str:
    """A line folded at blanks; what has none (a name) stays whole."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    folded = textwrap.wrap(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )
    return "\n".join(folded)


def _lines(result: Result, limit: int, table: str) -> Iterator[str]:
    yield from _head(result)
    worst = result.worst(None)
    if worst:
        yield f"{'status':<11} {'kind':<10} {'wrong':>12} {'nonfinite':>10} {'max error':>12}  tensor"
    for row in worst[:limit]:
        yield from _row(row)
    if len(worst) > limit:
        yield f"{limit:,} of {len(worst):,} rows that are not right are shown; all rows are in {table}"


def _head(result: Result) -> Iterator[str]:
    live, stored, padding = (result.of_kind(kind) for kind in RowKind)
    elements = counted(sum(row.checked for row in live), "element")
    yield (
        f"{result.verdict.value}: {counted(len(live), 'live tensor')}, {elements} on "
        f"{counted(result.world_size, 'rank')} against {result.checkpoint}"
    )
    if result.incomplete:
        yield f"not everything was looked at: {result.incomplete}"
    yield from (f"rank {rank}: {printable(text)}" for rank, text in result.errors)
    yield from (f"rank {rank}: its report could not be written: {printable(text)}" for rank, text in result.unwritten)
    if not result.rows:
        return
    scope = f" of {counted(result.scope.elements, 'element')} in {counted(len(result.scope.files), 'file')}"
    yield f"live tensors: {_counts(live)}"
    yield f"stored tensors: {len(stored):,}{scope if result.scope.files else ''}: {_counts(stored)}"
    if padding:
        yield f"padding: {counted(sum(row.checked for row in padding), 'element')}: {_counts(padding)}"


def _counts(rows: Sequence[Row]) -> str:
    """`3 EXACT, 1 MISMATCH`, best first."""
    found = Counter(row.status for row in rows)
    return ", ".join(f"{found[status]:,} {status.value}" for status in RowStatus if found[status]) or "none"


def _row(row: Row) -> Iterator[str]:
    wrong, largest = row.load_mismatches or row.exact_mismatches, row.max_load_abs or row.max_abs
    error = "" if largest is None else f"{largest:.6g}"
    figures = f"{wrong:>12} {row.nonfinite:>10} {error:>12}"
    yield f"{row.status.value:<11} {row.kind.value:<10} {figures}  {printable(row.name)}"
    if row.reason:
        yield f"    {printable(row.reason)}"
    if row.first or row.special:
        yield f"    {first_difference(row)}"


def first_difference(row: Row) -> str:
    """The first difference of a row, or else its first element that is not finite, as one line."""
    first = row.first or row.special
    if first is None:
        return ""
    where = f"{first.checkpoint_key}{list(first.checkpoint_index)}" if first.checkpoint_key else "a constant"
    if row.kind is RowKind.PADDING:
        where = "zero padding"
    return printable(
        f"first at {first.live_key}{list(first.live_index)}: {first.actual} ({first.storage_dtype}, "
        f"{first.actual_bits}), {where} gives {first.reference} ({first.reference_dtype}, {first.reference_bits})"
        f"{', the same once cast' if first.cast_only else ''}, rank {first.rank}"
    )
