"""Put the ranks' parts together: one row for every live tensor, every stored tensor and every padding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from ..facts import PlanFacts, TensorPlan
from ..names import counted
from .compare.counts import Difference, Tally
from .compare.diagnose import unravel
from .coverage import SourceCoverage
from .forward import Forward
from .rank_part import LivePart, RankPart
from .result import RANK_FAILED, ReferenceScope, Result, Row, RowKind, RowStatus, WrongLayout, sorted_rows
from .storage.stored_tensors import TensorSource

Alike = Mapping[str, Sequence[Sequence[int]]]
EMPTY: Alike = {}
INTERRUPTED = "the run was interrupted"
_EXCLUDED = ("missing-ignored", "missing-excluded")


@frozen
class _Told:
    """What the load and the ranks tell, which every row of a live tensor needs."""

    forward: Forward
    parts: Sequence[RankPart]


def merged(forward: Forward, parts: Sequence[RankPart], alike: Alike = EMPTY) -> Result:
    """
    The result of all ranks. The plan of the caller, rank 0, counts for all.

    `alike` are, by name, the groups of ranks that hold the same part of a tensor.
    """
    differ = _differing(parts, alike)
    live = with_looks(_live_rows(forward, parts, differ), parts)
    rows = [*live, *_checkpoint_rows(forward, parts), *_padding_rows(parts)]
    return Result(
        rows=sorted_rows(rows),
        layouts=_layouts(parts),
        errors=tuple((part.rank, part.error) for part in parts if part.error),
        crashed=tuple(part.rank for part in parts if part.crashed),
        incomplete=why_incomplete(parts) or _uncomparable(rows),
        world_size=len(parts),
        unwritten=unwritten(parts),
        scope=scope_of(forward.sources.tensors),
        compared_bytes=sum(part.bytes for part in parts),
        seconds=max((part.seconds for part in parts), default=0.0),
    )


def with_looks(rows: Iterable[Row], parts: Sequence[RankPart]) -> Iterator[Row]:
    """The rows with what is known of how their tensors look, of the first rank that knows it."""
    looks = {look.name: look for part in reversed(parts) for look in part.looks}
    for row in rows:
        look = looks.get(row.name) if row.status is RowStatus.MISMATCH else None
        yield row if look is None else evolve(row, look=look.text, median_abs=look.median_abs, bits=look.bits)


def why_incomplete(parts: Sequence[RankPart]) -> str:
    """Why the ranks did not look at everything; empty when they did."""
    if any(part.interrupted for part in parts):
        return INTERRUPTED
    if any(part.sampled for part in parts):
        return "only a sample of the elements was compared, which proves nothing about the rest"
    return ""


def _uncomparable(rows: Iterable[Row]) -> str:
    """Why live tensors cannot be compared at all; empty when all can."""
    rows = [row for row in rows if row.status is RowStatus.NOT_COMPARED]
    rows = [row for row in rows if row.kind is RowKind.LIVE] or rows
    if not rows:
        return ""
    return f"{counted(len(rows), 'tensor')} cannot be compared: {rows[0].reason}"


def unwritten(parts: Iterable[RankPart]) -> tuple[tuple[int, str], ...]:
    """The ranks whose report could not be written, and why."""
    return tuple((part.rank, part.unwritten) for part in parts if part.unwritten)


def scope_of(sources: Mapping[str, TensorSource]) -> ReferenceScope:
    """What the stored tensors are, in sum."""
    return ReferenceScope(
        files=tuple(sorted({name for source in sources.values() for name in source.files})),
        tensors=len(sources),
        elements=sum(source.volume for source in sources.values()),
        bytes=sum(source.nbytes for source in sources.values()),
    )


def _differing(parts: Sequence[RankPart], alike: Alike) -> dict[str, set[int]]:
    """The ranks on which each live tensor differs: those that compared it, and those with the same bits."""
    found: dict[str, set[int]] = defaultdict(set)
    for part in parts:
        for count in part.counts:
            if count.tally.load_mismatches:
                found[count.live].add(part.rank)
    followed = {(part.rank, name) for part in parts for live in part.live if live.followed for name in live.names}
    for name, ranks in found.items():
        for group in alike.get(name, ()):
            if ranks.intersection(group):
                ranks.update(rank for rank in group if (rank, name) in followed)
    return found


def _layouts(parts: Sequence[RankPart]) -> tuple[WrongLayout, ...]:
    """Layouts that explain every rank on which the tensor differs."""
    wrong: dict[str, set[int]] = defaultdict(set)
    explained: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for part in parts:
        for count in part.counts:
            if count.tally.load_mismatches:
                wrong[count.live].add(part.rank)
        for layout in part.layouts:
            explained[layout.name, layout.declared, layout.found].add(part.rank)
    return tuple(
        WrongLayout(name=name, declared=declared, found=found, ranks=tuple(sorted(ranks)))
        for (name, declared, found), ranks in sorted(explained.items())
        if wrong[name] == ranks
    )


def tallies(sources: Mapping[str, TensorSource], parts: Sequence[RankPart], by: str) -> dict[str, Tally]:
    """The counts of all ranks by live (`live`) or stored (`key`) tensor."""
    found: dict[str, Tally] = {}
    for part in parts:
        for count in part.counts:
            first = count.tally.first and _placed(count.tally.first, part.rank, sources)
            special = count.tally.special and _placed(count.tally.special, part.rank, sources)
            found.setdefault(getattr(count, by), Tally()).add(evolve(count.tally, first=first, special=special))
    return found


def _placed(difference: Difference, rank: int, sources: Mapping[str, TensorSource]) -> Difference:
    """The difference with its rank, and the flat element of the stored tensor as an index."""
    source = sources.get(difference.checkpoint_key)
    index = difference.checkpoint_index
    if source is not None and len(index) == 1 and index[0] < source.volume:
        index = unravel(index[0], source.shape)
    return evolve(difference, rank=rank, checkpoint_index=index)


def _status(tally: Tally, complete: bool) -> RowStatus:
    if tally.load_mismatches:
        return RowStatus.MISMATCH
    if not complete:
        return RowStatus.INCOMPLETE
    if tally.nonfinite:
        return RowStatus.NON_FINITE
    return RowStatus.DTYPE_CAST if tally.exact_mismatches else RowStatus.EXACT


def count_row(kind: RowKind, name: str, tally: Tally, complete: bool) -> Row:
    """A row with the counts of a tally."""
    return Row(
        kind=kind,
        name=name,
        status=_status(tally, complete),
        checked=tally.checked,
        exact_mismatches=tally.exact_mismatches,
        load_mismatches=tally.load_mismatches,
        nonfinite=tally.nonfinite,
        max_abs=tally.max_abs,
        max_load_abs=tally.max_load_abs,
        lower_bounds=bool(tally.counted_tiles),
        first=tally.first,
        special=tally.special,
    )


def _live_rows(forward: Forward, parts: Sequence[RankPart], differ: Mapping[str, set[int]]) -> Iterable[Row]:
    found = tallies(forward.sources.tensors, parts, "live")
    plans = forward.plan.tensor_by_name()
    held: dict[str, list[tuple[int, LivePart]]] = defaultdict(list)
    for part in parts:
        for live in part.live:
            held[live.name].append((part.rank, live))
    for name, on_ranks in held.items():
        first = on_ranks[0][1]
        names = [alias for alias in first.names if alias in found] or [name]
        for alias in names:
            row = _live_row(alias, on_ranks, found.get(alias, Tally()), plans, _Told(forward, parts))
            yield evolve(row, ranks=tuple(sorted(differ.get(alias, ()))))


def _live_row(
    name: str,
    on_ranks: Sequence[tuple[int, LivePart]],
    tally: Tally,
    plans: Mapping[str, TensorPlan],
    told: _Told,
) -> Row:
    parts, excuses, computed = told.parts, told.forward.excuses, told.forward.computed
    partial, failed = bool(why_incomplete(parts)), {part.rank for part in parts if part.error}
    expected = sum(live.expected for _, live in on_ranks)
    followed = sum(live.expected for _, live in on_ranks if live.followed)
    covered = all(live.covered == live.expected for _, live in on_ranks)
    checked = tally.checked + followed
    plan = plans.get(name)
    row = count_row(RowKind.LIVE, name, tally, (covered and checked == expected) or (partial and covered))
    reason = next((live.reason for _, live in on_ranks if live.reason), "")
    status = row.status
    if plan is not None and plan.status in _EXCLUDED and not tally.checked:
        status = RowStatus.EXCLUDED
    elif status is RowStatus.INCOMPLETE and not tally.checked and name in excuses.live and name not in computed:
        status, reason = RowStatus.EXCLUDED, excuses.live[name]
    elif status is RowStatus.INCOMPLETE and not tally.checked and name in computed:
        status = RowStatus.NOT_COMPARED
    elif status is RowStatus.INCOMPLETE and not reason and failed.intersection(rank for rank, _ in on_ranks):
        reason = RANK_FAILED
    elif status is RowStatus.INCOMPLETE and not reason:
        reason = f"{checked} of {expected} elements were compared"
    return evolve(
        row,
        status=status,
        checked=checked,
        expected=expected,
        shape=plan.shape if plan else (),
        dtype=on_ranks[0][1].dtype,
        sources=plan.sources if plan else (),
        operations=plan.operations if plan else (),
        reason=reason,
    )


def _checkpoint_rows(forward: Forward, parts: Sequence[RankPart]) -> Iterable[Row]:
    coverage = SourceCoverage()
    for part in parts:
        coverage.merge(part.read, part.unknown)
    found = tallies(forward.sources.tensors, parts, "key")
    partial = bool(why_incomplete(parts))
    users = forward.plan.names_by_key()
    excused = _leftovers(forward.plan) | {key: (why, True) for key, why in forward.excuses.stored.items()}
    uncompared = _uncompared_sources(users, forward.computed)
    failed = any(part.error for part in parts)
    differ = _differing_sources(parts)
    for key, source in forward.sources.tensors.items():
        tally = found.get(key, Tally())
        read = coverage.volume(key)
        row = count_row(RowKind.CHECKPOINT, key, tally, read == source.volume)
        checked = tally.checked if partial else read or 0
        told = checkpoint_row(row, source, read, excused.get(key, (RANK_FAILED, False) if failed else None))
        if told.status is RowStatus.INCOMPLETE and key in uncompared:
            told = evolve(told, status=RowStatus.NOT_COMPARED, reason="no live tensor holds its values as they are")
        yield evolve(
            told,
            checked=checked,
            sources=users.get(key, ()),
            ranks=tuple(sorted(differ.get(key, ()))),
        )
    for key, reason in forward.sources.refused.items():
        leftover, right = excused.get(key, ("", False))
        yield Row(
            kind=RowKind.CHECKPOINT,
            name=key,
            status=RowStatus.EXCLUDED if right else RowStatus.INCOMPLETE,
            reason=f"{leftover}; {reason}" if right else reason,
            sources=users.get(key, ()),
        )


def _uncompared_sources(users: Mapping[str, Sequence[str]], computed: frozenset[str]) -> set[str]:
    """Stored keys from which values were computed that nothing stored holds."""
    return {key for key, names in users.items() if computed.intersection(names)} | computed if computed else set()


def _differing_sources(parts: Sequence[RankPart]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for part in parts:
        for count in part.counts:
            if count.tally.load_mismatches:
                found[count.key].add(part.rank)
    return found


def checkpoint_row(row: Row, source: TensorSource, read: int | None, leftover: tuple[str, bool] | None) -> Row:
    """The row of a stored tensor; `leftover` is why it has no live tensor, and whether that is right."""
    status, reason = row.status, ""
    if leftover is not None and not read:
        reason, excused = leftover
        status = RowStatus.EXCLUDED if excused else RowStatus.INCOMPLETE
    elif read is None:
        reason = "how much of it was read cannot be told within bounded memory"
    elif read != source.volume and leftover is not None:
        reason = leftover[0]
    elif read != source.volume:
        reason = f"{read} of {source.volume} elements reach a live tensor"
    return evolve(
        row,
        status=status,
        reason=reason,
        shape=source.shape,
        dtype=str(source.dtype).removeprefix("torch."),
        expected=source.volume,
    )


def _leftovers(plan: PlanFacts) -> dict[str, tuple[str, bool]]:
    """Stored keys without a live tensor: why, and whether that is right."""
    found: dict[str, tuple[str, bool]] = {}
    for remark in plan.remarks:
        if remark.kind == "duplicate-source":
            text = f"ambiguous: the stored keys {' and '.join(remark.keys)} are both for {remark.name}"
            found.update(dict.fromkeys(remark.keys, (text, False)))
    for leftover in plan.leftovers:
        text = f"{leftover.reason} ({leftover.pattern})" if leftover.pattern else leftover.reason
        if leftover.reason == "unexpected":
            text = f"no live tensor takes it; it would be called {leftover.renamed}"
        found[leftover.key] = (text, leftover.reason != "unexpected")
    return found


def _padding_rows(parts: Sequence[RankPart]) -> Iterable[Row]:
    sums: dict[str, Tally] = {}
    differ: dict[str, list[int]] = defaultdict(list)
    dtypes: dict[str, str] = {}
    for part in parts:
        for live in part.live:
            if live.padding is None:
                continue
            first = live.padding.first and evolve(live.padding.first, rank=part.rank)
            sums.setdefault(live.name, Tally()).add(evolve(live.padding, first=first))
            dtypes[live.name] = live.dtype
            if live.padding.load_mismatches:
                differ[live.name].append(part.rank)
    for name, tally in sums.items():
        row = count_row(RowKind.PADDING, name, tally, complete=True)
        yield evolve(
            row,
            expected=tally.checked,
            dtype=dtypes[name],
            reason="elements beyond the logical shape must be zero" if tally.load_mismatches else "",
            ranks=tuple(sorted(differ[name])),
        )
