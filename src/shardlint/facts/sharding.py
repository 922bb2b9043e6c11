"""
The `sharding` section: who owns each parameter, how it is cut, and over which ranks its gradient is summed.

Many parameters share few layouts, so parameters refer to layouts, layouts to meshes, and units to reductions by
their index in the tables of `ShardingFacts`. A field that is None is *unknown* when the record's `unknown` names it
(the installed torch does not say), else it does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import frozen

from ..boxes import Box, Placement
from ..names import ROOT
from .frozen import EMPTY, FrozenDict
from .unknown import Unknown, known

UNMANAGED = "<unmanaged>"
UNTRACKED = "<untracked:"

DENSE = "DENSE"
EXPERT = "EXPERT"
LOCAL = "LOCAL"


@frozen(kw_only=True)
class MeshFacts:
    """
    A device mesh: axis names (empty when unnamed), sizes, ranks row by row, this rank's coordinate in it.

    Of a slice of a larger mesh, `ranks` are those of the slice that this rank is in, and `beyond` the axes of the
    larger one that the slice leaves out, where torch tells them. `coordinate` is None when this rank is not part of the
    mesh.
    """

    axes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    coordinate: tuple[int, ...] | None = None
    device_type: str = ""
    beyond: tuple[str, ...] = ()

    def coordinate_of(self, rank: int) -> tuple[int, ...] | None:
        """Where `rank` sits in the mesh; None when it does not."""
        if rank not in self.ranks:
            return None
        index, out = self.ranks.index(rank), []
        for size in reversed(self.shape):
            index, place = divmod(index, size)
            out.append(place)
        return tuple(reversed(out))

    def text(self) -> str:
        """`(fsdp=4, ep=2)`."""
        names = self.axes or ("",) * len(self.shape)
        parts = (f"{name}={size}" if name else str(size) for name, size in zip(names, self.shape, strict=False))
        return "(" + ", ".join(parts) + ")"


@frozen(kw_only=True)
class LayoutFacts:
    """
    How a parameter is cut. Shapes are in elements.

    `mesh` and `placements` are those of the parameter as it is now, data-parallel sharding included;
    `source_mesh` and `source_placements` those that it had before (tensor or expert parallelism), None and empty
    when it was a plain tensor. `boxes` is what this rank holds by replaying the placements, `replayed_shape` the local
    shape that follows; `built` is what it holds by the order of construction. `data_dim` is the tensor dim of
    data-parallel sharding, `flat` start and length of the part held of a parameter that is cut as a flat sequence.
    """

    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    mesh: int | None = None
    placements: tuple[Placement, ...] = ()
    source_mesh: int | None = None
    source_placements: tuple[Placement, ...] = ()
    data_dim: int | None = None
    flat: tuple[int, int] | None = None
    boxes: tuple[Box, ...] | None = None
    built: tuple[Box, ...] | None = None
    replayed_shape: tuple[int, ...] | None = None
    unknown: tuple[str, ...] = ()


@frozen(kw_only=True)
class ReductionFacts:
    """The ranks over which a gradient is summed, and what the sum is divided by. None when unknown."""

    ranks: tuple[int, ...] | None = None
    divisor: float | None = None


@frozen(kw_only=True)
class UnitFacts:
    """
    Parameters that are sharded and reduced together.

    `name` is `owner`, with `#1` and so on for the further parameter groups of one module. `owner` is the FQN of the
    module (`<root>` for the root), several joined by `+`. `kind` is fsdp2, hsdp, replicate, fsdp1, ddp, hyperparallel
    or what a pack's collector calls it. `domains` gives the sorted parameter FQNs of each gradient domain;
    `domain_unknown` says why that of some parameter is in none of them, empty when all are known.
    A prefetch target outside the module tree is named `<untracked:ClassName>`. `reduced` counts the parameters that
    the unit reduces, where it says so and may have left some out: DDP reduces what was trainable when it was made.
    """

    name: str
    owner: str
    kind: str
    modules: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    group: int = 0
    groups: int = 1
    mesh: int | None = None
    reduction: int | None = None
    domains: FrozenDict = EMPTY
    domain_unknown: str = ""
    parameter_count: int = 0
    mixed_precision: FrozenDict = EMPTY
    reshard_after_forward: bool | None = None
    forward_prefetch: tuple[str, ...] = ()
    backward_prefetch: tuple[str, ...] = ()
    is_root: bool | None = None
    unsharded: bool | None = None
    pending_all_gather: bool | None = None
    hooks_alive: bool | None = None
    one_dtype_only: bool | None = None
    reduced: int | None = None
    flags: FrozenDict = EMPTY
    unknown: tuple[str, ...] = ()

    @property
    def at_root(self) -> bool:
        """Whether the root module is (one of) the unit's modules."""
        return ROOT in self.modules or self.owner == ROOT


@frozen(kw_only=True)
class OwnershipFacts:
    """
    One parameter under one of its names.

    Equal `identity` means one parameter: aliases have a record each. `domain` is DENSE, EXPERT or LOCAL, or not known.
    `layout` and `unit` are indices; `unit` is None and `owner` `<unmanaged>` when no unit manages the parameter.
    `replaced` tells that the unit still manages this tensor though the module holds another one by now. `origin`
    numbers the tensors as they were before wrapping, None when unknown. `marks` are the flags that libraries set on
    parameters (`tensor_model_parallel`, `partition_dim`, `allreduce`, ...). `optimized` is None when no optimizer was
    given.
    """

    fqn: str
    owner: str
    unit: int | None = None
    domain: str | Unknown = DENSE
    layout: int
    identity: int
    origin: int | None = None
    dtype: str = ""
    device: str = ""
    requires_grad: bool = True
    replaced: bool = False
    optimized: bool | None = None
    marks: FrozenDict = EMPTY

    @property
    def managed(self) -> bool:
        """Whether some unit reduces the gradient."""
        return known(self.unit) is not None


@frozen(kw_only=True)
class ShardingFacts:
    """
    Ownership of every parameter, and the tables that the records refer to.

    `moment` is before-first-forward, sharded (some forward ran, everything is sharded again), unsharded (some unit
    holds full parameters: within a step) or unknown. `expert_axes` are the mesh axis names that were taken for
    expert parallelism.
    """

    moment: str = "unknown"
    meshes: tuple[MeshFacts, ...] = ()
    layouts: tuple[LayoutFacts, ...] = ()
    reductions: tuple[ReductionFacts, ...] = ()
    units: tuple[UnitFacts, ...] = ()
    parameters: tuple[OwnershipFacts, ...] = ()
    expert_axes: tuple[str, ...] = ()

    def layout_of(self, record: OwnershipFacts) -> LayoutFacts:
        """The layout that the record refers to."""
        return self.layouts[record.layout]

    def unit_of(self, record: OwnershipFacts) -> UnitFacts | None:
        """The unit that manages the record's parameter; None when none does."""
        unit = known(record.unit)
        return None if unit is None else self.units[unit]

    def mesh(self, index: int | None) -> MeshFacts | None:
        """The mesh of that index; None for None."""
        return None if index is None else self.meshes[known(index)]

    def reduction_of(self, record: OwnershipFacts) -> ReductionFacts | None:
        """Where the parameter's gradient is summed; None when nothing sums it or its unit does not say."""
        unit = self.unit_of(record)
        return None if unit is None or unit.reduction is None else self.reductions[unit.reduction]

    def of_unit(self, index: int) -> Iterator[OwnershipFacts]:
        """The records of the parameters that the unit of that index manages."""
        return (record for record in self.parameters if record.unit == index)

    def by_unit(self) -> dict[int, list[OwnershipFacts]]:
        """The records of each unit, in one pass; those that no unit manages are left out."""
        found: dict[int, list[OwnershipFacts]] = {index: [] for index in range(len(self.units))}
        for record in self.parameters:
            if (unit := known(record.unit)) is not None:
                found[unit].append(record)
        return found

    def by_identity(self) -> dict[int, list[OwnershipFacts]]:
        """The records of each parameter: more than one when it has aliases."""
        found: dict[int, list[OwnershipFacts]] = {}
        for record in self.parameters:
            found.setdefault(record.identity, []).append(record)
        return found

    def mesh_text(self, index: int | None) -> str:
        """The mesh in words, for messages."""
        mesh = self.mesh(index)
        return "no mesh" if mesh is None else mesh.text()

    def contract_of(self, record: OwnershipFacts) -> tuple[str, str | Unknown, tuple[str, ...], tuple[str, ...]]:
        """
        Owner, domain, mesh axis names and placements: what all aliases of one parameter must share.

        Mesh and placements are those before data-parallel sharding where the others are not told.
        """
        layout = self.layout_of(record)
        told = layout.mesh is not None
        mesh = self.mesh(layout.mesh if told else layout.source_mesh)
        placements = layout.placements if told else layout.source_placements
        return record.owner, record.domain, mesh.axes if mesh else (), placement_texts(placements)


def placement_texts(placements: tuple[Placement, ...]) -> tuple[str, ...]:
    """What each placement calls itself."""
    return tuple(placement.text or placement.kind for placement in placements)


def numel(shape: tuple[int, ...]) -> int:
    """Number of elements of a tensor of that shape."""
    return math.prod(shape)
