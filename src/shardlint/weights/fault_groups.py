"""Faults of a result grouped for a reader: one for all tensors of a pattern that are wrong in the same way."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from attrs import field, frozen

from ..names import collapse, counted, natural_key, pattern_of
from .report_text import first_difference
from .result import RANK_FAILED, Result, Row, RowKind, RowStatus

_DIGITS = re.compile(r"[0-9]+")
SHOWN_NAMES = 20


@frozen(kw_only=True)
class Fault:
    """
    One thing that is wrong. `what` is mismatch, layout, nonfinite, uncompared, unread, padding, replicas, rank or
    report; or renamed, which is right and worth a word.

    `subject` collapses the names of all tensors concerned, `ranks` are those on which the fault shows (empty: all).
    """

    what: str
    subject: str
    message: str
    ranks: tuple[int, ...] = ()
    evidence: dict[str, Any] = field(factory=dict)


def faults(result: Result) -> tuple[Fault, ...]:
    """All faults of a result, the worst kind first."""
    explained = {layout.name for layout in result.layouts}
    live = result.of_kind(RowKind.LIVE)
    wrong = [row for row in live if row.status is RowStatus.MISMATCH and row.name not in explained]
    special = [row for row in live if row.nonfinite and row.status is not RowStatus.MISMATCH]
    hole = [row for row in live if row.status is RowStatus.INCOMPLETE and row.reason != RANK_FAILED]
    stored = result.of_kind(RowKind.CHECKPOINT)
    unread = [row for row in stored if row.status is RowStatus.INCOMPLETE and row.reason != RANK_FAILED]
    padding = [row for row in result.of_kind(RowKind.PADDING) if row.status is RowStatus.MISMATCH]
    return (
        *(_rank(rank, text) for rank, text in result.errors if rank not in result.crashed),
        *(_report(rank, text) for rank, text in result.unwritten),
        *_grouped("mismatch", wrong, _mismatch, result.world_size),
        *_layouts(result),
        *_grouped("nonfinite", special, _nonfinite, result.world_size),
        *_grouped("uncompared", hole, _uncompared, result.world_size),
        *_grouped("unread", unread, _unread, result.world_size),
        *_grouped("padding", padding, _padding, result.world_size),
        *_replicas(result),
        *_renamed(result),
    )


def _renamed(result: Result) -> Iterator[Fault]:
    """Equal values under other names: nothing is wrong."""
    if result.renamed:
        mine, other = result.renamed[0]
        yield Fault(
            what="renamed",
            subject=mine,
            message=f"{counted(len(result.renamed), 'tensor')} of the checkpoint "
            f"{'has' if len(result.renamed) == 1 else 'have'} another name in the reference, with the same bits: the "
            f"first is {other} there",
            evidence={"names": tuple(f"{one} is {two}" for one, two in result.renamed[:SHOWN_NAMES])},
        )


def _report(rank: int, text: str) -> Fault:
    message = f"rank {rank} could not write its report: {text}"
    return Fault(what="report", subject=f"rank {rank}", message=message, ranks=(rank,))


def _rank(rank: int, text: str) -> Fault:
    return Fault(what="rank", subject=f"rank {rank}", message=f"rank {rank} could not compare: {text}", ranks=(rank,))


def _layouts(result: Result) -> Iterator[Fault]:
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    ranks: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for layout in result.layouts:
        key = (pattern_of(layout.name), layout.declared, layout.found)
        groups[key].append(layout.name)
        ranks[key] |= set(layout.ranks)
    for (pattern, declared, found), names in groups.items():
        yield Fault(
            what="layout",
            subject=collapse(names),
            message=f"the placement {declared} does not describe the data: the bits are those of {found}",
            ranks=tuple(sorted(ranks[pattern, declared, found])),
            evidence={"declared": declared, "found": found, "tensors": tuple(names[:SHOWN_NAMES])},
        )


def _replicas(result: Result) -> Iterator[Fault]:
    """Replicas that differ, where no difference from the checkpoint shows it: of tensors that it does not have."""
    shown = {row.name for row in result.of_kind(RowKind.LIVE) if row.load_mismatches or row.nonfinite}
    for group in result.replicas:
        if group.name not in shown:
            yield Fault(
                what="replicas",
                subject=group.name,
                message=group.text,
                ranks=group.everywhere,
                evidence={"reference": group.reference, "differing": group.ranks},
            )


def _grouped(
    what: str, rows: Iterable[Row], message: Callable[[Sequence[Row]], str], world_size: int
) -> Iterator[Fault]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[pattern_of(row.name), _DIGITS.sub("#", row.reason)].append(row)
    for members in groups.values():
        ordered = sorted(members, key=lambda row: natural_key(row.name))
        names = [row.name for row in ordered]
        ranks = _ranks(ordered, world_size)
        only = f" Only rank {ranks[0]} differs." if what == "mismatch" and len(ranks) == 1 < world_size else ""
        yield Fault(
            what=what,
            subject=collapse(names),
            message=message(ordered) + only,
            ranks=ranks,
            evidence=_evidence(ordered),
        )


def _ranks(rows: Sequence[Row], world_size: int) -> tuple[int, ...]:
    """The ranks on which some of the tensors differ; none when it is all of them."""
    found = {rank for row in rows for rank in row.ranks}
    return () if len(found) == world_size else tuple(sorted(found))


def _evidence(rows: Sequence[Row]) -> dict[str, Any]:
    first = next((row.first or row.special for row in rows if row.first or row.special), None)
    found: dict[str, Any] = {
        "tensors": tuple(row.name for row in rows[:SHOWN_NAMES]),
        "count": len(rows),
        "checked": sum(row.checked for row in rows),
        "expected": sum(row.expected for row in rows),
        "load_dtype_mismatches": sum(row.load_mismatches for row in rows),
        "exact_reference_mismatches": sum(row.exact_mismatches for row in rows),
        "nonfinite_elements": sum(row.nonfinite for row in rows),
    }
    if first is not None:
        found["first_live"] = f"{first.live_key}{list(first.live_index)}"
        found["first_checkpoint"] = (
            f"{first.checkpoint_key}{list(first.checkpoint_index) if first.checkpoint_key else ''}"
        )
        found["actual"], found["reference"] = first.actual, first.reference
    if looks := tuple(f"{row.name} {row.look}" for row in rows[:SHOWN_NAMES] if row.look):
        found["looks"] = looks
    medians = [row.median_abs for row in rows if row.median_abs is not None]
    if medians:
        found["largest_difference"] = max((row.max_load_abs or 0.0 for row in rows), default=0.0)
        found["median_difference"] = sorted(medians)[len(medians) // 2]
        found["differing_low_bits"] = max(row.bits for row in rows)
    reasons = tuple(dict.fromkeys(row.reason for row in rows if row.reason))
    return found | ({"reason": reasons[0]} if reasons else {})


def _count(rows: Sequence[Row]) -> str:
    return f" in {len(rows)} tensors" if len(rows) > 1 else ""


def _tensors(rows: Sequence[Row]) -> str:
    return f"{len(rows)} tensors" if len(rows) > 1 else "the tensor"


def _mismatch(rows: Sequence[Row]) -> str:
    wrong, total = sum(row.load_mismatches for row in rows), sum(row.expected for row in rows)
    first = next(row for row in rows if row.first)
    are = "is" if wrong == 1 else "are"
    text = f"{wrong} of {total} elements{_count(rows)} {are} not what the checkpoint holds; {first_difference(first)}"
    return text + _looks(rows)


def _looks(rows: Sequence[Row]) -> str:
    """`. It equals the stored tensor transposed.`, or nothing where that is not known."""
    looks = [row for row in rows if row.look]
    if not looks:
        return ""
    first = looks[0]
    alike = len({row.look for row in looks}) == 1
    who = "It" if len(rows) == 1 else "Each" if alike and len(looks) == len(rows) else first.name
    return f". {who} {first.look}."


def _nonfinite(rows: Sequence[Row]) -> str:
    first = next((row for row in rows if row.special), rows[0])
    what = _elements(sum(row.nonfinite for row in rows), "element", rows)
    return f"{what} infinite or not a number; {first_difference(first)}"


def _uncompared(rows: Sequence[Row]) -> str:
    total = sum(row.expected - row.checked for row in rows)
    what = _many(total, "element", rows) if total else _tensors(rows)
    return f"{what} could not be compared with the checkpoint: {rows[0].reason}"


def _unread(rows: Sequence[Row]) -> str:
    total = sum(row.expected - row.checked for row in rows)
    if not total:  # nothing that could be counted
        return f"{_tensors(rows)} of the checkpoint could not be compared: {rows[0].reason}"
    return f"{_many(total, 'stored element', rows)} {'has' if total == 1 else 'have'} no counterpart: {rows[0].reason}"


def _padding(rows: Sequence[Row]) -> str:
    first = next(row for row in rows if row.first)
    what = _elements(sum(row.load_mismatches for row in rows), "padding element", rows)
    return f"{what} not zero; {first_difference(first)}"


def _many(count: int, noun: str, rows: Sequence[Row]) -> str:
    """`1 element`, `2 elements in 3 tensors`."""
    return f"{counted(count, noun)}{_count(rows)}"


def _elements(count: int, noun: str, rows: Sequence[Row]) -> str:
    """`1 element is`, `2 elements in 3 tensors are`."""
    return f"{_many(count, noun, rows)} {'is' if count == 1 else 'are'}"
