"""What the rules of this phase ask of layouts, meshes and ownership records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import NotEvaluated
from shardlint.boxes import OTHER
from shardlint.facts import LayoutFacts, MeshFacts, OwnershipFacts, ShardingFacts
from shardlint.names import ranges


def ranks_text(ranks: Iterable[int] | None) -> str:
    """`ranks 0..3`, `rank 2`, or that they are not known."""
    numbers = None if ranks is None else tuple(ranks)
    if numbers is None:
        return "unknown ranks"
    return f"rank{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


def live(records: Iterable[OwnershipFacts]) -> Iterator[OwnershipFacts]:
    """The records of parameters that the model holds now: those that were replaced since are left out."""
    return (record for record in records if not record.replaced)


def once(records: Iterable[OwnershipFacts]) -> Iterator[OwnershipFacts]:
    """One record for each parameter: the first of its names."""
    seen: set[tuple[int, str]] = set()
    for record in records:
        key = (record.identity, record.owner)
        if key not in seen:
            seen.add(key)
            yield record


def strange_placement(layout: LayoutFacts, *, source: bool = False) -> str | None:
    """The first placement (of the source) that is not understood, as it calls itself; None when all are."""
    placements = layout.source_placements if source else (*layout.placements, *layout.source_placements)
    return next((placement.text for placement in placements if placement.kind == OTHER), None)


def refuse_strange(layout: LayoutFacts, *, source: bool = False) -> None:
    """Raise `NotEvaluated` when some placement is not understood, so that nothing tells what a rank holds."""
    if (text := strange_placement(layout, source=source)) is not None:
        raise NotEvaluated(f"what the placement {text} holds is not known")


def axes_that_shard(sharding: ShardingFacts, layout: LayoutFacts, dim: int) -> Iterator[tuple[str, int]]:
    """Name and size of each mesh axis that cut tensor dim `dim` before data-parallel sharding."""
    mesh = sharding.mesh(layout.source_mesh)
    if mesh is None or not layout.global_shape:
        return
    for index, placement in enumerate(layout.source_placements):
        if placement.is_shard and index < len(mesh.shape) and (placement.dim or 0) % len(layout.global_shape) == dim:
            yield axis_name(mesh, index), mesh.shape[index]


def axis_name(mesh: MeshFacts, index: int) -> str:
    """The name of a mesh axis, its number when the mesh has no names."""
    return mesh.axes[index] if index < len(mesh.axes) else f"axis {index}"
