"""The report files of a verification: `tensors.csv`, `worst.txt`, `summary.json`, a `rank_00000.json` of every rank."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from attrs import evolve

from ..names import csv_cell, first_line
from .report_text import as_text
from .result import Result, Row, RowKind, RowStatus, WeightsVerdict

if TYPE_CHECKING:
    from ..ranks.exchange import Exchange, RankError
    from .options import VerifyOptions
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
TABLE = "tensors.csv"


def write_rank(part: RankPart, folder: Path, *, checkpoint: str, phase: str, files: Iterable[str]) -> Path:
    """Write what one rank found, compared with the named files of a checkpoint. Raises `OSError`."""
    path = _rank_file(folder, part.rank)
    report = {"checkpoint": checkpoint, "phase": phase, "source_files": sorted(set(files))}
    _write(path, msgspec.json.format(msgspec.json.encode(report | msgspec.to_builtins(part)), indent=1))
    return path


def _rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank:05d}.json"


def write_summary(result: Result, folder: Path) -> tuple[Path, Path]:
    """Write `tensors.csv` (worst first), `worst.txt` and `summary.json`. Raises `OSError`."""
    table = folder / TABLE
    _write(table, as_csv(result).encode())
    _write(folder / "worst.txt", as_text(result, table=TABLE).encode())
    return table, _write_summary(result, folder)


def _write_summary(result: Result, folder: Path) -> Path:
    path = folder / "summary.json"
    _write(path, msgspec.json.format(msgspec.json.encode(summary_of(result)), indent=1) + b"\n")
    return path


def begun(options: VerifyOptions, exchange: Exchange, checkpoint: str) -> Result | None:
    """
    Take away what an earlier run left, and leave a summary that says this one has not ended. A collective call.

    So that a run that is killed leaves no verdict of another one, and that nobody works for hours for a report that
    cannot be written: then the result, the same on every rank, says so at once. Otherwise None.
    """
    mine = "" if options.reports is None else _clear(options.reports, exchange, checkpoint)
    texts = [msgspec.json.decode(blob, type=str) for blob in exchange.gather(msgspec.json.encode(mine))]
    failed = tuple((rank, text) for rank, text in enumerate(texts) if text)
    failed = msgspec.json.decode(exchange.broadcast(msgspec.json.encode(failed)), type=tuple[tuple[int, str], ...])
    if not failed:
        return None
    result = Result(
        rows=(),
        incomplete="a report could not be written, so nothing was compared",
        checkpoint=checkpoint,
        world_size=exchange.world_size,
        unwritten=failed,
        phase=options.phase,
    )
    if options.reports is not None and not exchange.rank:
        with contextlib.suppress(OSError):
            write_summary(result, options.reports)
    return result


def _clear(folder: Path, exchange: Exchange, checkpoint: str) -> str:
    """Make the folder ready for this rank's reports; why that cannot be done, else empty."""
    try:
        check_writable(folder)
        _rank_file(folder, exchange.rank).unlink(missing_ok=True)
        if exchange.rank:
            return ""
        for name in (TABLE, "worst.txt"):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob("rank_*.json"):
            number = path.stem.removeprefix("rank_")
            if number.isdigit() and int(number) >= exchange.world_size:
                path.unlink()
        waiting = Result(rows=(), incomplete=UNENDED, checkpoint=checkpoint, world_size=exchange.world_size)
        _write_summary(waiting, folder)
    except OSError as error:
        return first_line(error)
    return ""


def check_writable(folder: Path) -> None:
    """Make the folder, write a file into it and take that away again. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as draft:
        draft.write(b"0")


def reported(result: Result, folder: Path | None) -> Result:
    """Write the summary of a result; the result that says so when it could not be written."""
    if folder is None:
        return result
    try:
        write_summary(result, folder)
    except OSError as error:
        return evolve(result, unwritten=(*result.unwritten, (0, first_line(error))))
    return result


def failed_result(error: RankError, checkpoint: str, options: VerifyOptions) -> Result:
    """The result when a rank did not answer. Whoever notices it writes it: the first rank may be the one."""
    result = Result(
        rows=(),
        errors=((error.rank, str(error)),),
        checkpoint=checkpoint,
        world_size=error.world_size,
        phase=options.phase,
    )
    return reported(result, options.reports)


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
    writer.writerows(map(csv_cell, _cells(row)) for row in result.rows)
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
    live, stored, padding = (result.of_kind(kind) for kind in RowKind)
    exact = sum(row.exact_mismatches for row in live)
    uncovered = [row for row in stored if row.status is RowStatus.INCOMPLETE]
    return {
        "format": FORMAT,
        "verdict": result.verdict.value,
        "exact_reference_match": result.verdict is WeightsVerdict.PASS and not exact,
        "incomplete": result.incomplete,
        "phase": result.phase,
        "checkpoint": result.checkpoint,
        "reference_scope": result.scope,
        "world_size": result.world_size,
        "live_tensors": {status.value: result.count(status) for status in RowStatus},
        "checkpoint_tensors": {status.value: result.count(status, RowKind.CHECKPOINT) for status in RowStatus},
        "padding_tensors": {status.value: result.count(status, RowKind.PADDING) for status in RowStatus},
        "elements": sum(row.checked for row in live),
        "checkpoint_elements": sum(row.expected for row in stored),
        "padding_elements": sum(row.checked for row in padding),
        "load_dtype_mismatches": sum(row.load_mismatches for row in live),
        "exact_reference_mismatches": exact,
        "nonfinite_elements": sum(row.nonfinite for row in live),
        "padding_mismatches": sum(row.load_mismatches for row in padding),
        "uncovered_checkpoint_tensors": [_uncovered(row) for row in uncovered],
        "uncovered_live_tensors": [_uncovered(row) for row in live if row.status is RowStatus.INCOMPLETE],
        "compared_bytes": result.compared_bytes,
        "seconds": round(result.seconds, 3),
        "bytes_sent_by_rank": result.exchanged,
        "wrong_layouts": result.layouts,
        "differing_replicas": result.replicas,
        "rank_errors": [{"rank": rank, "error": text} for rank, text in result.errors],
        "unwritten_reports": [{"rank": rank, "error": text} for rank, text in result.unwritten],
        "worst": result.worst(),
    }


def _uncovered(row: Row) -> dict[str, Any]:
    return {"name": row.name, "checked": row.checked, "expected": row.expected, "reason": row.reason}
