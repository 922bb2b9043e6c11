"""D312 uneven-shard."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.boxes import coordinates, replay, shape_of
from shardlint.facts import LayoutFacts, OwnershipFacts, ShardingFacts, known

from ._layouts import live, once, refuse_strange, strange_placement

_MESH_LIMIT = 4096


@frozen
class _Cut:
    """A parameter on a mesh, and how many ranks hold which local shape: None when that is not known."""

    fqn: str
    record: OwnershipFacts
    shapes: Counter[tuple[int, ...]] | None
    tied: bool


class UnevenShard(Rule):
    """
    The ranks of a mesh hold shards of different sizes, some of them perhaps none.

    ## What it does
    Reports, for information, parameters of which a sharded dim is not divisible by the mesh axes that cut it, with
    the sizes that ranks hold. It is a warning where torch has a known limit: a tied parameter, and a dim that both
    tensor (or expert) and data parallelism cut.

    ## Why it is unsafe
    Uneven shards are padded in communication and are easily mistaken by code that takes the local size for the global
    one divided by the ranks. Empty shards break statistics and fused kernels. A dim that is cut twice unevenly is
    refused up to torch 2.7, and later versions describe it wrongly on some ranks.

    ## What to do
    Choose sizes that the degrees divide (pad the vocabulary), or shard another dim.
    """

    code = "D312"
    name = "uneven-shard"
    phase = Phase.D3
    severity = Severity.INFO
    needs = (Section.SHARDING,)

    noun = "distributed parameter"

    def subjects(self, facts: Facts) -> Iterator[_Cut]:
        sharding = facts.require(Section.SHARDING)
        known: dict[int, Counter[tuple[int, ...]] | None] = {}
        names = Counter(record.identity for record in live(sharding.parameters))
        for record in once(live(sharding.parameters)):
            layout = sharding.layout_of(record)
            if layout.mesh is None and "mesh" not in layout.unknown:
                continue
            if record.layout not in known:
                known[record.layout] = _shapes(sharding, layout)
            yield _Cut(record.fqn, record, known[record.layout], tied=names[record.identity] > 1)

    def judge(self, cut: _Cut, facts: Facts) -> Iterator[Finding]:
        layout = facts.require(Section.SHARDING).layout_of(cut.record)
        if cut.shapes is None:
            refuse_strange(layout)
            raise NotEvaluated("what the ranks hold of it is not known")
        known(cut.fqn)
        if len(cut.shapes) > 1:
            yield self.uneven(cut.record, layout, cut.shapes, tied=cut.tied)

    def uneven(
        self, record: OwnershipFacts, layout: LayoutFacts, shapes: Counter[tuple[int, ...]], *, tied: bool
    ) -> Finding:
        limit = "it is tied" if tied else "both parallelisms cut one dim" if _cut_twice(layout) else ""
        empty = sum(count for shape, count in shapes.items() if not math.prod(shape))
        parts = [f"{count} x {list(shape)}" for shape, count in sorted(shapes.items(), reverse=True)]
        return self.finding(
            subject=record.fqn,
            owner=record.owner,
            severity=Severity.WARNING if limit else Severity.INFO,
            message=(
                f"shape {list(layout.global_shape)} is cut unevenly: {', '.join(parts)}"
                + (f"; {empty} empty" if empty else "")
                + (f"; {limit}, where torch has known limits" if limit else "")
            ),
            evidence={"shapes": [[list(shape), count] for shape, count in sorted(shapes.items())], "limit": limit},
        )


def _shapes(sharding: ShardingFacts, layout: LayoutFacts) -> Counter[tuple[int, ...]] | None:
    """How many ranks of the mesh hold which local shape: empty when all hold the same, None when it is not known."""
    mesh = sharding.mesh(layout.mesh)
    if mesh is None or strange_placement(layout) is not None:
        return None
    if not _may_be_uneven(layout, mesh.shape):
        return Counter()
    places = itertools.islice(coordinates(mesh.shape), _MESH_LIMIT)
    try:
        return Counter(shape_of(replay(layout.global_shape, mesh.shape, place, layout.placements)) for place in places)
    except ValueError:  # a dim that the tensor lacks
        return None


def _may_be_uneven(layout: LayoutFacts, mesh_shape: tuple[int, ...]) -> bool:
    pieces = Counter[int]()
    for size, placement in zip(mesh_shape, layout.placements, strict=False):
        if placement.is_shard and placement.dim is not None and layout.global_shape:
            dim = placement.dim % len(layout.global_shape)
            pieces[dim] = (pieces[dim] or 1) * size * (placement.split_factor or 1)
    return any(layout.global_shape[dim] % count for dim, count in pieces.items())


def _cut_twice(layout: LayoutFacts) -> bool:
    ndim = max(len(layout.global_shape), 1)
    dims = {(placement.dim or 0) % ndim for placement in layout.source_placements if placement.is_shard}
    return layout.data_dim is not None and layout.data_dim % ndim in dims
