"""The rows of a comparison of two checkpoints: one for every tensor of either, with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve

from .checkpoint_sides import Side, comparable, formats
from .compare.counts import Tally
from .coverage import SourceCoverage, live_volume
from .merge import checkpoint_row, count_row, tallies, why_incomplete
from .rank_part import RankPart
from .result import Row, RowKind, RowStatus


def live_rows(one: Side, two: Side, parts: Sequence[RankPart]) -> Iterator[Row]:
    """A row for every tensor of the checkpoint that is looked at."""
    found = tallies(two.sources, parts, "live")
    partial = bool(why_incomplete(parts))
    for name, region in one.regions.items():
        tally, expected = found.get(name, Tally()), region.numel()
        covered = min(live_volume(side.regions[name].blocks) if name in side.regions else 0 for side in (one, two))
        row = count_row(RowKind.LIVE, name, tally, covered == expected and (partial or tally.checked == expected))
        reason = "" if row.status is not RowStatus.INCOMPLETE else _why_not(one, two, name, tally, expected)
        yield evolve(
            row,
            shape=tuple(region.shape),
            dtype=str(region.dtype).removeprefix("torch."),
            expected=expected,
            sources=tuple(sorted(two.regions[name].sources())) if name in two.regions else (),
            reason=reason,
        )
    for name, text in one.refused.items():
        yield Row(kind=RowKind.LIVE, name=name, status=RowStatus.INCOMPLETE, reason=text)
    yield from _unread(one)


def _unread(one: Side) -> Iterator[Row]:
    """Stored tensors of the checkpoint that is looked at which reach no shared name."""
    coverage = _coverage(one)
    for key, source in one.sources.items():
        read = coverage.volume(key)
        reason = one.excused.get(key, "")
        if read == source.volume:
            continue
        yield Row(
            kind=RowKind.LIVE,
            name=key,
            status=RowStatus.EXCLUDED if reason else RowStatus.INCOMPLETE,
            reason=reason or f"{read} of {source.volume} stored elements reach a name that both checkpoints have",
            checked=read or 0,
            expected=source.volume,
        )


def _why_not(one: Side, two: Side, name: str, tally: Tally, expected: int) -> str:
    if name in two.refused:
        return f"in {two.path}: {two.refused[name]}"
    if name not in two.regions:
        return f"{two.path} has no tensor of this name"
    if formats(one, name) != formats(two, name):
        return f"{two.path} has another dtype: {', '.join(sorted(formats(two, name))) or 'one that torch has'}"
    if not comparable(one, two, name):
        return f"{two.path} has the shape {list(two.regions[name].shape)}"
    return f"{tally.checked} of {expected} elements were compared"


def _why_unread(one: Side, two: Side, key: str, read: int, volume: int) -> str:
    names = sorted(name for name, region in two.regions.items() if key in region.sources())
    if read:
        return f"{read} of {volume} elements have a counterpart in {one.path}"
    called = f"; it would be called {names[0]}" if names and names[0] != key else ""
    if names and names[0] in one.regions:
        return f"{one.path} has the shape {list(one.regions[names[0]].shape)}{called}"
    return f"{one.path} has no tensor for it{called}"


def _coverage(side: Side) -> SourceCoverage:
    coverage = SourceCoverage()
    for region in side.regions.values():
        coverage.add(region.blocks)
    coverage.join()
    return coverage


def reference_rows(one: Side, two: Side, parts: Sequence[RankPart]) -> Iterator[Row]:
    """A row for every stored tensor of the reference: which of its elements some tensor was compared with."""
    coverage = SourceCoverage()
    for name, region in two.regions.items():
        if name in one.regions and comparable(one, two, name):
            coverage.add(region.blocks)
    found = tallies(two.sources, parts, "key")
    for key, source in two.sources.items():
        read = coverage.volume(key)
        row = count_row(RowKind.CHECKPOINT, key, found.get(key, Tally()), read == source.volume)
        excuse = two.excused.get(key)
        row = checkpoint_row(row, source, read, None if excuse is None else (excuse, True))
        if row.status is RowStatus.INCOMPLETE and read is not None:
            row = evolve(row, reason=_why_unread(one, two, key, read, source.volume))
        yield evolve(row, checked=read or 0)
    for key, text in two.refused.items():
        if key not in one.regions:
            yield Row(kind=RowKind.CHECKPOINT, name=key, status=RowStatus.INCOMPLETE, reason=text)
