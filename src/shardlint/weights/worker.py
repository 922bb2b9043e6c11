"""The work of one rank: every shard compared with the stored elements that it must hold."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from ..boxes import SHARD, STRIDED, Placement, replay
from .compare.live_tensor import LiveBytes, Unreadable
from .compare.padding import padding_of
from .compare.pieces import Piece, pieces_of
from .compare.threads import Compared, Options, compare
from .conversions import ConversionGroup, Rows
from .coverage import SourceCoverage, live_volume
from .explain import explained
from .forward import Forward
from .rank_part import CountPart, LivePart, LookPart, RankPart
from .result import WrongLayout
from .shards import Shard, localised
from .storage.reader import Reader
from .storage.stored_tensors import Files, TensorSource
from .symbolic.blocks import Block, shifted
from .symbolic.tensor import Held, SymbolicTensor

# The largest conversion that is evaluated on values when no bound is given.
GROUP_BYTES = 1 << 31
# How much of a conversion that can be cut is evaluated at a time.
PORTION_BYTES = 1 << 27
_UNDECLARED = (
    "no stored tensor gives it, and some stored keys arrive nowhere; if they were loaded with a key_mapping or another "
    "loader's renaming that the model does not record, declare it as checkpoint.renames"
)


class Worker:
    """Compares the shards of one rank, and keeps what it found in `part`."""

    def __init__(self, forward: Forward, options: Options, rank: int = 0) -> None:
        self.forward = forward
        self.options = options
        self.part = RankPart(rank=rank)
        self.coverage = SourceCoverage()
        self.shards: dict[str, Shard] = {}

    def run(self, shards: Iterable[Shard], followed: frozenset[str] = frozenset()) -> RankPart:
        """
        Compare all shards; those in `followed` only count as covered, another rank compares the same bits.

        Raises `ReadError` for an unreadable file and `Unreadable` for a live tensor that cannot be read.
        """
        pieces: list[Piece] = []
        grouped: dict[str, list[Shard]] = {}
        for shard in shards:
            pieces += self._prepare(shard, grouped, follow=shard.name in followed)
        found = compare(pieces, self.forward.sources.tensors, self.options)
        self._keep(found)
        for first, members in grouped.items():
            if not self.part.interrupted:
                self._evaluate(first, self.forward.groups[first], members)
        if not self.part.interrupted:
            self._explain()
            self._look_again()
        self.coverage.join()
        self.part.read = {key: lattices for key, lattices in self.coverage.lattices.items() if lattices}
        self.part.unknown = sorted(self.coverage.unknown)
        return self.part

    def _prepare(self, shard: Shard, grouped: dict[str, list[Shard]], *, follow: bool) -> list[Piece]:
        expected = math.prod(shard.logical)
        regions = self._regions(shard)
        settings = {"padding": padding_of(shard.name, shard.local, shard.logical), "followed": follow}
        if not regions:
            group = self._group_of(shard)
            if group is not None:
                grouped.setdefault(group, []).append(shard)
                return []
            self._add_live(shard, expected, 0, reason=self._reason(shard), **settings)
            return []
        pieces: list[Piece] = []
        covered = expected
        for name, region in regions.items():
            local = localised(region, shard.ranges)
            covered = min(covered, live_volume(local.blocks))
            self.coverage.add(local.blocks)
            if not follow and expected:
                self.shards[name] = shard
                pieces += pieces_of(LiveBytes(name, shard.held, staged=self.options.staged), local, self._sources)
        self._add_live(shard, expected, covered, **settings)
        return pieces

    @property
    def _sources(self) -> Mapping[str, TensorSource]:
        return self.forward.sources.tensors

    def _regions(self, shard: Shard) -> dict[str, SymbolicTensor]:
        """The distinct symbolic tensors that this tensor must equal: one, or one for each stored alias."""
        found: dict[str, SymbolicTensor] = {}
        for name in shard.names:
            region = self.forward.regions.get(name)
            if region is not None and not any(region is other for other in found.values()):
                if tuple(region.shape) != shard.global_shape:
                    raise Unreadable(
                        f"{name}: the checkpoint gives the shape {list(region.shape)}, the live tensor has "
                        f"{list(shard.global_shape)}"
                    )
                found[name] = region
        return found

    def _group_of(self, shard: Shard) -> str | None:
        plans = self.forward.plan.tensor_by_name()
        for name in shard.names:
            plan = plans.get(name)
            for candidate in (name, plan.tied_to if plan else None):
                if candidate in self.forward.groups:
                    return candidate
        return None

    def _reason(self, shard: Shard) -> str:
        plans = self.forward.plan.tensor_by_name()
        for name in shard.names:
            if name in self.forward.refused:
                return self.forward.refused[name]
        plan = next((plans[name] for name in shard.names if name in plans), None)
        if plan is None:
            return "it is not part of the load plan"
        if plan.status == "mismatched":
            return f"the checkpoint gives the shape {list(plan.converted_shape or ())}"
        if plan.status == "missing":
            return self._missing()
        return f"{plan.status}: {plan.reason}" if plan.reason else plan.status

    def _missing(self) -> str:
        plan = self.forward.plan
        if plan.unread:
            return f"no stored tensor gives it; {', '.join(plan.unread[:3])} could not be read"
        if any(leftover.reason == "unexpected" for leftover in plan.leftovers):
            return _UNDECLARED
        return "no stored tensor gives it"

    def _add_live(self, shard: Shard, expected: int, covered: int, **more: object) -> None:
        self.part.live.append(
            LivePart(
                name=shard.name,
                names=shard.names,
                dtype=str(shard.local.dtype).removeprefix("torch."),
                expected=expected,
                covered=covered,
                **more,  # type: ignore[arg-type]
            )
        )

    def _keep(self, found: Compared) -> None:
        self.part.counts += [CountPart(live=live, key=key, tally=tally) for (live, key), tally in found.counts.items()]
        self.part.bytes += found.bytes
        self.part.seconds += found.seconds
        self.part.interrupted |= found.interrupted
        self.part.sampled |= found.sampled

    def _evaluate(self, first: str, group: ConversionGroup, members: Sequence[Shard]) -> None:
        """Evaluate a conversion that needs values, portion by portion within the bound, and compare what it gives."""
        bound = self.options.max_memory or GROUP_BYTES
        if group.smallest > bound:
            reason = f"{group.reason}; on values it takes {group.smallest} bytes, more than the bound of {bound}"
            for shard in members:
                self._add_live(shard, math.prod(shard.logical), 0, reason=reason)
            return
        covered = dict.fromkeys((shard.name for shard in members), 0)
        reasons: dict[str, str] = {}
        for rows in group.portions(min(bound, PORTION_BYTES)):
            if self.part.interrupted:
                break
            with Files() as files:
                values = group.evaluate(lambda key, part: stored_rows(self._sources[key], files, part), rows)
            pieces: list[Piece] = []
            for shard in members:
                found = self._portion(first, group, shard, values, rows)
                if isinstance(found, str):
                    reasons[shard.name] = f"{group.reason}; on values it gives {found}"
                    continue
                covered[shard.name] += live_volume(found.blocks)
                name = _target(first, shard, values)
                pieces += pieces_of(LiveBytes(name, shard.held, staged=self.options.staged), found, self._sources)
            self._keep(compare(pieces, self._sources, self.options))
        for shard in members:
            self._add_live(shard, math.prod(shard.logical), covered[shard.name], reason=reasons.get(shard.name, ""))
        if not reasons:
            self.coverage.merge({key: [(0, ((self._sources[key].volume, 1),))] for key in group.keys})

    def _portion(
        self, first: str, group: ConversionGroup, shard: Shard, values: Mapping[str, torch.Tensor], rows: Rows | None
    ) -> SymbolicTensor | str:
        """What the shard must hold of some rows of the global tensor, or what was found that does not fit it."""
        value = values.get(_target(first, shard, values))
        low, high = rows or (0, shard.global_shape[0] if shard.global_shape else 0)
        wanted = (high - low, *shard.global_shape[1:]) if shard.global_shape else ()
        if value is None or tuple(value.shape) != wanted:
            return "nothing" if value is None else f"the shape {list(value.shape)}"
        region = SymbolicTensor.leaf(Held(value, group.keys), value.shape, value.dtype)
        if rows is None:
            return localised(region, shard.ranges)
        blocks: list[Block] = []
        at = 0
        for start, length in shard.ranges[0]:
            begin, end = max(start, low), min(start + length, high)
            if begin < end:
                part = localised(region, (((begin - low, end - begin),), *shard.ranges[1:]))
                blocks += shifted(part.blocks, 0, at + begin - start)
            at += length
        return SymbolicTensor(blocks, shard.logical, value.dtype)

    def _explain(self) -> None:
        """For a shard that differs: is it right for another placement than it declares?"""
        wrong = {count.live for count in self.part.counts if count.tally.load_mismatches}
        for name in sorted(wrong & set(self.shards)):
            layout = right_layout(name, self.shards[name], functools.partial(self._fits, name))
            if layout is not None:
                self.part.layouts.append(layout)

    def _look_again(self) -> None:
        """What do the shards that differ look like?"""
        told = {layout.name for layout in self.part.layouts}
        wrong = {count.live for count in self.part.counts if count.tally.load_mismatches}
        wanted = [name for name in wrong & set(self.shards) if name not in told]
        if not wanted:
            return
        regions = _alike(self.forward.regions, [self.shards[name] for name in wanted])
        with Files() as files:
            reader = Reader(self._sources, files, 1)

            def live(name: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
                box = tuple(slice(low, low + size) for low, size in zip(offsets, sizes, strict=True))
                return self.shards[name].held.detach()[box].cpu()

            def stored(name: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
                return reader.box(regions[name], offsets, sizes)

            shapes = {name: tuple(region.shape) for name, region in regions.items()}
            for name, look in explained([name for name in wanted if name in regions], shapes, live, stored):
                self.part.looks.append(LookPart(name=name, text=look.text, median_abs=look.median_abs, bits=look.bits))

    def _fits(self, name: str, ranges: Sequence[Sequence[tuple[int, int]]]) -> bool:
        shard = self.shards[name]
        region = localised(self.forward.regions[name], [tuple(range_) for range_ in ranges])
        if tuple(region.shape) != shard.logical:
            return False
        live = LiveBytes(name, shard.held, staged=self.options.staged)
        found = compare(list(pieces_of(live, region, self._sources)), self._sources, self.options)
        return not any(tally.load_mismatches for tally in found.counts.values())


def _alike(regions: Mapping[str, SymbolicTensor], shards: Sequence[Shard]) -> dict[str, SymbolicTensor]:
    """Each stored tensor that has the global shape of one of the shards, cut as that shard is."""
    cuts = {shard.global_shape: shard.ranges for shard in shards}
    found = {
        name: localised(region, cuts[tuple(region.shape)])
        for name, region in regions.items()
        if tuple(region.shape) in cuts
    }
    for shard in shards:
        found |= {name: localised(regions[name], shard.ranges) for name in shard.names if name in regions}
    return found


def _target(first: str, shard: Shard, values: Mapping[str, torch.Tensor]) -> str:
    """The name under which a conversion gives the tensor of this shard."""
    return next((name for name in (first, *shard.names) if name in values and name in shard.names), first)


def stored_rows(source: TensorSource, files: Files, rows: Rows | None) -> torch.Tensor:
    """Some rows of a stored tensor in memory, all of them when `rows` is None."""
    leaf = SymbolicTensor.leaf(source.key, source.shape, source.dtype)
    low, high = rows or (0, source.shape[0] if source.shape else 0)
    offsets, sizes = (low, *(0 for _ in source.shape[1:])), (high - low, *source.shape[1:])
    if not source.shape:
        offsets = sizes = ()
    return Reader({source.key: source}, files, 1).box(leaf, offsets, sizes)


def right_layout(
    name: str, shard: Shard, fits: Callable[[Sequence[Sequence[tuple[int, int]]]], bool]
) -> WrongLayout | None:
    """The first other placement of one mesh axis for which the bits are right; None when there is none."""
    if shard.layout is None:
        return None
    layout = shard.layout
    for axis, declared in enumerate(layout.placements):
        for other in _alternatives(declared):
            placements = (*layout.placements[:axis], other, *layout.placements[axis + 1 :])
            ranges = replay(shard.global_shape, layout.mesh_shape, layout.coordinate, placements)
            if ranges != shard.ranges and fits(ranges):
                return WrongLayout(name=name, declared=declared.text, found=other.text)
    return None


def _alternatives(declared: Placement) -> list[Placement]:
    if declared.kind == SHARD:
        text = "_StridedShard(dim={}, split_factor={})"
        return [Placement(STRIDED, declared.dim, k, text.format(declared.dim, k)) for k in (2, 3)]
    if declared.kind == STRIDED:
        return [Placement(SHARD, declared.dim, None, f"Shard(dim={declared.dim})")]
    return []
