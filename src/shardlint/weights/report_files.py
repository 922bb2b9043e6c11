"""The report files of a verification: `tensors.csv`, `worst.txt`, `summary.json`, a `rank_00000.json` of every rank."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from attrs import evolve

from ..names import printable
from .result import Result, Row, RowKind, RowStatus

if TYPE_CHECKING:
    from ..ranks.exchange import Exchange, RankError
    from .rank_part import RankPart

FORMAT = 1
UNENDED = "the run has not ended: it goes on, or it was killed"
# fmt: off
COLUMNS = (
    "kind", "name", "status", "shape", "dtype", "checked", "expected", "exact_reference_mismatches",
    "load_dtype_mismatches", "nonfinite_elements", "max_abs_error", "max_load_dtype_abs_error",
    "errors_are_lower_bounds", "sources", "operations", "ranks", "reason", "first_live_index", "first_checkpoint_key",
    "first_checkpoint_index", "first_actual", "first_reference", "first_reference_in_storage_dtype",
    "first_storage_dtype", "first_reference_dtype", "first_rank",
)
# fmt: on
SHOWN_SOURCES = 8
WIDTH = 100


def write_rank(part: RankPart, folder: Path) -> Path:
    """Write what one rank found. Raises `OSError`."""
    path = folder / f"rank_{part.rank:05d}.json"
    _write(path, msgspec.json.format(msgspec.json.encode(part), indent=1))
    return path


def write_summary(result: Result, folder: Path) -> tuple[Path, Path]:
    """Write `tensors.csv` (worst first), `worst.txt` and `summary.json`. Raises `OSError`."""
    table = folder / "tensors.csv"
    _write(table, as_csv(result).encode())
    _write(folder / "worst.txt", as_text(result).encode())
    return table, _write_summary(result, folder)


def _write_summary(result: Result, folder: Path) -> Path:
    path = folder / "summary.json"
    _write(path, msgspec.json.format(msgspec.json.encode(summary_of(result)), indent=1) + b"\n")
    return path


def begun(folder: Path | None, exchange: Exchange, checkpoint: str) -> None:
    """
    Take away what an earlier run left, and leave a summary that says this one has not ended.

    So that a run that is killed leaves no verdict of another one. What cannot be written is told when it ends.
    """
    if folder is None:
        return
    with contextlib.suppress(OSError):
        (folder / f"rank_{exchange.rank:05d}.json").unlink(missing_ok=True)
        if exchange.rank:
            return
        for name in ("tensors.csv", "worst.txt"):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob("rank_*.json"):
            number = path.stem.removeprefix("rank_")
            if number.isdigit() and int(number) >= exchange.world_size:
                path.unlink()
        waiting = Result(rows=(), incomplete=UNENDED, checkpoint=checkpoint, world_size=exchange.world_size)
        _write_summary(waiting, folder)


def reported(result: Result, folder: Path | None, exchange: Exchange) -> Result:
    """Write the summary of a result on rank 0; the result with a note when it could not be written."""
    if folder is None or exchange.rank:
        return result
    try:
        write_summary(result, folder)
    except OSError as error:
        note = f"rank {exchange.rank}: the report could not be written: {error}"
        return evolve(result, notes=tuple(dict.fromkeys((*result.notes, note))))
    return result


def failed_result(error: RankError, checkpoint: str, folder: Path | None) -> Result:
    """The result when a rank did not answer. Whoever notices it writes it: the first rank may be the one."""
    result = Result(rows=(), errors=((error.rank, str(error)),), checkpoint=checkpoint, world_size=error.world_size)
    if folder is not None:
        with contextlib.suppress(OSError):
            write_summary(result, folder)
    return result


def _write(path: Path, data: bytes) -> None:
    """Put a whole file in place, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)


def as_csv(result: Result) -> str:
    """All rows as CSV, worst first."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row) for row in result.rows)
    return out.getvalue()


def _cells(row: Row) -> list[Any]:
    sources = " ".join(row.sources[:SHOWN_SOURCES])
    sources += f" ... {len(row.sources)} in all" if len(row.sources) > SHOWN_SOURCES else ""
    first = row.first or row.special
    cells = [row.kind.value, row.name, row.status.value, list(row.shape), row.dtype, row.checked, row.expected]
    cells += [row.exact_mismatches, row.load_mismatches, row.nonfinite, _error(row.max_abs), _error(row.max_load_abs)]
    cells += [row.lower_bounds, sources, " ".join(row.operations), " ".join(map(str, row.ranks)), row.reason]
    if first is None:
        return [*cells, *[""] * 9]
    cells += [list(first.live_index), first.checkpoint_key, list(first.checkpoint_index), first.actual]
    cells += [first.reference, first.reference_in_storage_dtype, first.storage_dtype, first.reference_dtype, first.rank]
    return cells


def _error(value: float | None) -> str:
    return "" if value is None else repr(value)


def summary_of(result: Result) -> dict[str, Any]:
    """The result in figures, and its worst rows."""
    return {
        "format": FORMAT,
        "verdict": result.verdict.value,
        "incomplete": result.incomplete,
        "checkpoint": result.checkpoint,
        "world_size": result.world_size,
        "live_tensors": {status.value: result.count(status) for status in RowStatus},
        "checkpoint_tensors": {status.value: result.count(status, RowKind.CHECKPOINT) for status in RowStatus},
        "elements": sum(row.checked for row in result.of_kind(RowKind.LIVE)),
        "load_dtype_mismatches": sum(row.load_mismatches for row in result.of_kind(RowKind.LIVE)),
        "exact_reference_mismatches": sum(row.exact_mismatches for row in result.of_kind(RowKind.LIVE)),
        "nonfinite_elements": sum(row.nonfinite for row in result.of_kind(RowKind.LIVE)),
        "compared_bytes": result.compared_bytes,
        "seconds": round(result.seconds, 3),
        "bytes_sent_by_rank": result.exchanged,
        "wrong_layouts": result.layouts,
        "differing_replicas": result.replicas,
        "rank_errors": [{"rank": rank, "error": text} for rank, text in result.errors],
        "notes": result.notes,
        "worst": result.worst(),
    }


def as_text(result: Result, limit: int = 50, width: int = WIDTH) -> str:
    """The verdict and a table of the worst rows, with each first difference, in lines of at most `width` columns."""
    return "".join(_wrapped(line, width) + "\n" for line in _lines(result, limit))


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


def _lines(result: Result, limit: int) -> list[str]:
    live = result.of_kind(RowKind.LIVE)
    lines = [
        f"{result.verdict.value}: {len(live)} live tensors, {sum(row.checked for row in live)} elements on "
        f"{result.world_size} rank{'s' if result.world_size != 1 else ''} against {result.checkpoint}"
    ]
    if result.incomplete:
        lines.append(f"not everything was looked at: {result.incomplete}")
    lines += [f"rank {rank}: {printable(text)}" for rank, text in result.errors]
    worst = result.worst(limit)
    if worst:
        lines.append(f"{'status':<11} {'kind':<10} {'wrong':>12} {'nonfinite':>10} {'max error':>12}  tensor")
    for row in worst:
        wrong, largest = row.load_mismatches or row.exact_mismatches, row.max_load_abs or row.max_abs
        error = "" if largest is None else f"{largest:.6g}"
        figures = f"{wrong:>12} {row.nonfinite:>10} {error:>12}"
        lines.append(f"{row.status.value:<11} {row.kind.value:<10} {figures}  {printable(row.name)}")
        if row.reason:
            lines.append(f"    {printable(row.reason)}")
        if row.first or row.special:
            lines.append(f"    {first_difference(row)}")
    return lines


def first_difference(row: Row) -> str:
    """The first difference of a row, or else its first element that is not finite, as one line."""
    first = row.first or row.special
    if first is None:
        return ""
    where = f"{first.checkpoint_key}{list(first.checkpoint_index)}" if first.checkpoint_key else "a constant"
    return printable(
        f"first at {first.live_key}{list(first.live_index)}: {first.actual} ({first.storage_dtype}, "
        f"{first.actual_bits}), {where} gives {first.reference} ({first.reference_dtype}, {first.reference_bits})"
        f"{', the same once cast' if first.cast_only else ''}, rank {first.rank}"
    )
