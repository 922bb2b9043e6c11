"""Put sharding on a snapshot by hand: who owns which parameter, how it is cut, where its gradient is summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve, field, frozen

from ..boxes import REPLICATE, SHARD, Placement, product, rechunk, replay, shape_of
from ..facts import (
    DENSE,
    EXPERT,
    ROOT,
    UNMANAGED,
    Facts,
    FrozenDict,
    LayoutFacts,
    MeshFacts,
    OwnershipFacts,
    RanksFacts,
    ReductionFacts,
    ShardingFacts,
    TensorFacts,
    UnitFacts,
    known,
)
from ..names import natural_key

REPLICATED = Placement(REPLICATE, None, None, "Replicate()")


def shard(dim: int) -> Placement:
    """A shard of tensor dim `dim`."""
    return Placement(SHARD, dim, None, f"Shard(dim={dim})")


@frozen(kw_only=True)
class Cut:
    """
    How one parameter is owned and cut.

    `mesh` and `placements` are the final ones, `source_mesh` and `source_placements` those before data-parallel
    sharding along tensor dim `data_dim` into `data_size` pieces. `reduced` are the ranks of its reduction.
    """

    owner: str
    mesh: MeshFacts | None = None
    placements: tuple[Placement, ...] = ()
    source_mesh: MeshFacts | None = None
    source_placements: tuple[Placement, ...] = ()
    data_dim: int | None = None
    data_size: int = 1
    reduced: tuple[int, ...] | None = None
    divisor: float | None = None
    domain: str = DENSE
    kind: str = "fsdp2"
    unknown: tuple[str, ...] = field(default=())


def sharded(facts: Facts, cut: Callable[[TensorFacts], Cut], world_size: int) -> Facts:
    """Return the snapshot of rank 0 of `world_size` ranks, each parameter cut as `cut` says."""
    assert facts.model is not None
    tables = _Tables()
    for number, tensor in enumerate(sorted(facts.model.parameters, key=lambda parameter: natural_key(parameter.fqn))):
        tables.add(tensor, cut(tensor), number)
    environment = evolve(facts.environment, world_size=world_size)
    return evolve(facts, sharding=tables.facts(), environment=environment)


class _Tables:
    def __init__(self) -> None:
        self.meshes: list[MeshFacts] = []
        self.layouts: list[LayoutFacts] = []
        self.reductions: list[ReductionFacts] = []
        self.units: dict[str, tuple[int, Cut]] = {}
        self.records: list[OwnershipFacts] = []

    def index(self, table: list[Any], value: Any) -> int:
        if value not in table:
            table.append(value)
        return table.index(value)

    def add(self, tensor: TensorFacts, cut: Cut, number: int) -> None:
        unit = None
        if cut.owner != UNMANAGED:
            unit = self.units.setdefault(cut.owner, (len(self.units), cut))[0]
        layout = self.index(self.layouts, self.layout(tensor, cut))
        for name in tensor.aliases:
            self.records.append(
                OwnershipFacts(
                    fqn=name,
                    owner=cut.owner,
                    unit=unit,
                    domain=cut.domain,
                    layout=layout,
                    identity=number,
                    origin=None if unit is None or cut.kind == "hyperparallel" else number,
                    dtype=tensor.dtype,
                    device=tensor.device,
                    requires_grad=tensor.requires_grad,
                )
            )

    def layout(self, tensor: TensorFacts, cut: Cut) -> LayoutFacts:
        facts = LayoutFacts(
            global_shape=tensor.shape,
            local_shape=tensor.shape,
            mesh=None if cut.mesh is None else self.index(self.meshes, cut.mesh),
            placements=cut.placements,
            source_mesh=None if cut.source_mesh is None else self.index(self.meshes, cut.source_mesh),
            source_placements=cut.source_placements,
            data_dim=cut.data_dim,
            unknown=cut.unknown,
        )
        if "boxes" in cut.unknown:
            return facts
        source = cut.source_mesh or MeshFacts(coordinate=())
        dims = replay(tensor.shape, source.shape, source.coordinate or (), cut.source_placements)
        if cut.data_dim is not None:
            dims = rechunk(dims, cut.data_dim, cut.data_size, 0)
        local_boxes, shape = product(dims), shape_of(dims)
        return evolve(facts, local_shape=shape, boxes=local_boxes, built=local_boxes, replayed_shape=shape)

    def facts(self) -> ShardingFacts:
        units = [self.unit(owner, index, cut) for owner, (index, cut) in self.units.items()]
        return ShardingFacts(
            moment="before-first-forward",
            meshes=tuple(self.meshes),
            layouts=tuple(self.layouts),
            reductions=tuple(self.reductions),
            units=tuple(units),
            parameters=tuple(self.records),
        )

    def unit(self, owner: str, index: int, cut: Cut) -> UnitFacts:
        records = [record for record in self.records if record.unit == index]
        told = [(known(owned.domain), owned.fqn) for owned in records]
        domains: dict[str, Any] = {
            domain: tuple(sorted((fqn for other, fqn in told if other == domain), key=natural_key))
            for domain in sorted({domain for domain, _ in told})
        }
        opaque = cut.kind == "hyperparallel"
        return UnitFacts(
            name=owner,
            owner=owner,
            kind=cut.kind,
            modules=(owner,),
            mesh=None if cut.mesh is None else self.index(self.meshes, cut.mesh),
            reduction=self.index(self.reductions, ReductionFacts(ranks=cut.reduced, divisor=cut.divisor)),
            domains=FrozenDict(domains),
            parameter_count=len({owned.identity for owned in records}),
            reshard_after_forward=None if opaque else True,
            is_root=None,
            unsharded=None if opaque else False,
            pending_all_gather=None if opaque else False,
            hooks_alive=None if opaque else True,
            one_dtype_only=None if opaque else True,
            unknown=("reduction ranks", "divisor", "one_dtype_only") if opaque else (),
        )


def _mesh(axes: Sequence[str], shape: Sequence[int], ranks: Sequence[int]) -> MeshFacts:
    place = tuple(0 for _ in shape)
    return MeshFacts(axes=tuple(axes), shape=tuple(shape), ranks=tuple(ranks), coordinate=place, device_type="cpu")


def block_of(fqn: str) -> str:
    """The unit of a decoder's parameter when every layer is wrapped: `model.layers.3`, else the root."""
    parts = fqn.split(".")
    return ".".join(parts[:3]) if parts[:2] == ["model", "layers"] else ROOT


def fsdp2(facts: Facts) -> Facts:
    """Shard over two ranks, every layer and the root a unit."""
    mesh = _mesh(("fsdp",), (2,), (0, 1))

    def cut(tensor: TensorFacts) -> Cut:
        return Cut(
            owner=block_of(tensor.fqn),
            mesh=mesh,
            placements=(shard(0),),
            data_dim=0,
            data_size=2,
            reduced=(0, 1),
            divisor=2.0,
        )

    return sharded(facts, cut, 2)


def tensor_parallel(facts: Facts) -> Facts:
    """Shard over four ranks: attention and MLP two ways tensor-parallel, everything two ways data-parallel."""
    both, inner = _mesh(("dp", "tp"), (2, 2), (0, 1, 2, 3)), _mesh(("tp",), (2,), (0, 1))

    def cut(tensor: TensorFacts) -> Cut:
        rows = any(part in tensor.fqn for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))
        columns = any(part in tensor.fqn for part in ("o_proj", "down_proj"))
        source = shard(0) if rows else shard(1) if columns else REPLICATED
        return Cut(
            owner=block_of(tensor.fqn),
            mesh=both,
            placements=(Placement("strided", 0, 2, "_StridedShard(dim=0, sf=2)") if rows else shard(0), source),
            source_mesh=inner,
            source_placements=(source,),
            data_dim=0,
            data_size=2,
            reduced=(0, 2),
            divisor=2.0,
        )

    return sharded(facts, cut, 4)


def expert_parallel(facts: Facts) -> Facts:
    """Shard over four ranks: dense parameters hybrid, experts two ways expert-parallel and two ways data-parallel."""
    dense = _mesh(("dp_replicate", "fsdp"), (2, 2), (0, 1, 2, 3))
    sparse, inner = _mesh(("efsdp", "ep"), (2, 2), (0, 1, 2, 3)), _mesh(("ep",), (2,), (0, 1))

    def cut(tensor: TensorFacts) -> Cut:
        if ".experts." not in tensor.fqn:
            return Cut(
                owner=block_of(tensor.fqn),
                mesh=dense,
                placements=(REPLICATED, shard(0)),
                data_dim=0,
                data_size=2,
                reduced=(0, 1, 2, 3),
                divisor=4.0,
                kind="hsdp",
            )
        return Cut(
            owner=tensor.fqn.rpartition(".")[0],
            mesh=sparse,
            placements=(shard(1), shard(0)),
            source_mesh=inner,
            source_placements=(shard(0),),
            data_dim=1,
            data_size=2,
            reduced=(0, 2),
            divisor=4.0,
            domain=EXPERT,
        )

    return sharded(facts, cut, 4)


def hyperparallel(facts: Facts) -> Facts:
    """Own every layer and every layer's experts as HyperParallel's HSDP does; its reductions are not told."""
    inner = _mesh(("ep",), (2,), (0, 1))

    def cut(tensor: TensorFacts) -> Cut:
        experts = ".experts." in tensor.fqn
        return Cut(
            owner=tensor.fqn.rpartition(".")[0] if experts else block_of(tensor.fqn),
            source_mesh=inner if experts else None,
            source_placements=(shard(0),) if experts else (),
            domain=EXPERT if experts else DENSE,
            kind="hyperparallel",
            unknown=("boxes", "mesh"),
        )

    return sharded(facts, cut, 2)


def compared(facts: Facts) -> Facts:
    """Add the comparison of the ranks: nothing differs."""
    ranks = tuple(range(facts.environment.world_size))
    return evolve(facts, ranks=RanksFacts(world_size=len(ranks), compared=(ranks,)))
