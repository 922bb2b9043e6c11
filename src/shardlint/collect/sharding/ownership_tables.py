"""Where collectors write what they find: tables of meshes, layouts and reductions, units, and ownership records."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from attrs import evolve

from ...boxes import Placement, product, replay, shape_of
from ...facts import EMPTY, FrozenDict, Unknown
from ...facts.sharding import (
    DENSE,
    LOCAL,
    UNTRACKED,
    LayoutFacts,
    MeshFacts,
    OwnershipFacts,
    ReductionFacts,
    UnitFacts,
)
from ...introspect.versioned import UNKNOWN
from ...introspect.walk import Walk
from ...names import ROOT, natural_key
from .beside import layouts_beside
from .dtensor import STORAGE_AXES, expert_domain, mesh_facts, nameless_cut, names_experts
from .placements import placement

MARKS = (
    "tensor_model_parallel",
    "partition_dim",
    "partition_stride",
    "sequence_parallel",
    "allreduce",
    "expert_parallel",
)
_MARKS = frozenset(MARKS)


class OwnershipTables:
    """
    The state of one collection. Objects whose `id()` is used as a key are kept alive until the tables is closed.

    `expert_axes` are further names of mesh axes that distribute experts. `optimized` are the ids of the tensors that
    the optimizer holds, None when there is no optimizer. `objects` gives the live object of an identity, `stand_ins` by
    `id()` the identity of the parameter whose place a tensor takes during a step.
    """

    def __init__(self, walk: Walk, *, expert_axes: Sequence[str] = (), optimized: set[int] | None = None) -> None:
        self.walk = walk
        self.storage_axes = (*STORAGE_AXES, *expert_axes)
        self.extra_axes = tuple(expert_axes)
        self.optimized = optimized
        self.meshes: list[MeshFacts] = []
        self.layouts: list[LayoutFacts] = []
        self.reductions: list[ReductionFacts] = []
        self.units: list[UnitFacts] = []
        self.records: list[OwnershipFacts] = []
        self.managed: set[int] = set()
        self.beside = layouts_beside(walk)
        self.objects: dict[int, Any] = {}
        self.stand_ins: dict[int, int] = {}
        self.kinds: dict[Hashable, tuple[int, str, str]] = {}
        self._kept: list[Any] = []
        self._memo: dict[Hashable, int] = {}
        self._texts: dict[Any, str] = {}
        self._placements: dict[Any, tuple[Placement, ...]] = {}
        self._identities: dict[int, int] = {}
        self._domains: dict[int, tuple[str | Unknown, str | None]] = {}
        self._origins: dict[int, int] = {}

    def mesh(self, mesh: Any) -> int | None:
        """The index of a live mesh in the table; None for None and what is unknown."""
        if mesh is None or mesh is UNKNOWN:
            return None
        key = ("live mesh", id(mesh))
        if key not in self._memo:
            self._kept.append(mesh)
            self._memo[key] = self._intern("mesh", mesh_facts(mesh), self.meshes)
        return self._memo[key]

    def placements(self, items: Any) -> tuple[Placement, ...]:
        """The placements of a live tensor or spec."""
        key = tuple(items)
        if any(type(live).__module__.partition(".")[0] != "torch" for live in key):
            return tuple(placement(live) for live in key)  # equal to strangers is not the same
        known = self._placements.get(key)
        if known is None:
            known = self._placements[key] = tuple(placement(live) for live in key)
        return known

    def layout(self, key: Hashable, make: Callable[[], LayoutFacts]) -> int:
        """The index of the layout that belongs to `key`, made when the key is new."""
        index = self._memo.get(key)
        if index is None:
            index = self._memo[key] = self._intern("layout", make(), self.layouts)
        return index

    def keep(self, *items: Any) -> None:
        """Keep objects alive whose ids are part of a key."""
        self._kept.extend(items)

    def reduction(self, ranks: Iterable[int] | None, divisor: float | None) -> int:
        """The index of a reduction in the table."""
        over = None if ranks is None else tuple(sorted(ranks))
        return self._intern("reduction", ReductionFacts(ranks=over, divisor=divisor), self.reductions)

    def replayed(self, facts: LayoutFacts) -> LayoutFacts:
        """The layout with the boxes that its mesh and placements give this rank, or with what is unknown named."""
        mesh = self.meshes[facts.mesh] if facts.mesh is not None else None
        if mesh is None:
            return facts
        try:
            if mesh.coordinate is None:
                raise ValueError("this rank is not part of the mesh")
            dims = replay(facts.global_shape, mesh.shape, mesh.coordinate, facts.placements)
        except ValueError:
            return evolve(facts, unknown=(*facts.unknown, "boxes"))
        return evolve(facts, boxes=product(dims), replayed_shape=shape_of(dims))

    def domain(self, layout: int, names: Iterable[str] = ()) -> str | Unknown:
        """
        DENSE or EXPERT, by the names of the mesh axes and the placements of the layout.

        `names` are those of the parameter: of experts that are cut along an axis that no convention names, the domain
        is not known.
        """
        known = self._domains.get(layout)
        if known is None:
            known = self._domains[layout] = self._domain_of(self.layouts[layout])
        domain, strange_axis = known
        if strange_axis is not None and any(map(names_experts, names)):
            return Unknown(
                f"it belongs to experts and is cut along the mesh axis {strange_axis}, and nothing says whether that "
                "distributes experts (expert-axes)"
            )
        return domain

    def _domain_of(self, facts: LayoutFacts) -> tuple[str | Unknown, str | None]:
        """The domain of a layout by its axes, and the axis that leaves it open whether experts are distributed."""
        source, mesh = self._axes(facts.source_mesh), self._axes(facts.mesh)
        domain = expert_domain(source, facts.source_placements, self.extra_axes)
        if domain is DENSE and any(axis in self.storage_axes for axis in (*source, *mesh)):
            domain = expert_domain(mesh, facts.placements, self.storage_axes)
        cut = facts.source_mesh is not None and domain is DENSE
        return domain, nameless_cut(source, facts.source_placements, self.extra_axes) if cut else None

    def _axes(self, index: int | None) -> tuple[str, ...]:
        return () if index is None else self.meshes[index].axes

    def identity(self, tensor: Any) -> int:
        """A small number for a live object: the same for the same one."""
        count = len(self._identities)
        number = self._identities.setdefault(id(tensor), count)
        if number == count:
            self.objects[number] = tensor  # which keeps it alive as well
        return number

    def stand_in(self, tensor: Any, identity: int) -> None:
        """Remember that `tensor` takes the place of the parameter of that identity during a step."""
        self._kept.append(tensor)
        self.stand_ins.setdefault(id(tensor), identity)

    def origin(self, uid: Any) -> int | None:
        """A small number for a parameter as it was before wrapping; None when the version does not number them."""
        return self._origins.setdefault(uid, len(self._origins)) if isinstance(uid, int) else None

    def text(self, value: Any) -> str:
        """The name of a dtype or device."""
        text = self._texts.get(value)
        if text is None:
            text = self._texts[value] = str(value).removeprefix("torch.")
        return text

    def module_name(self, module: Any) -> str:
        """The FQN of a module, `<root>` for the root, `<untracked:Class>` when it is not in the tree."""
        walked = self.walk.find_module(module)
        if walked is None:
            return f"{UNTRACKED}{type(module).__name__}>"
        return walked.fqn or ROOT

    def owner_name(self, modules: Iterable[Any]) -> str:
        """One name for the modules of a unit."""
        return "+".join(self.module_name(module) for module in modules)

    def names(self, module: Any, name: str, fallback: str | None = None) -> list[str]:
        """Every FQN of the parameter that `module` registers as `name`."""
        walked = self.walk.find_module(module)
        if walked is None:
            return [fallback or f"{UNTRACKED}{type(module).__name__}>.{name}"]
        return [f"{prefix}.{name}" if prefix else name for prefix in walked.names]

    def is_optimized(self, tensor: Any) -> bool | None:
        """Whether the optimizer holds the tensor; None when there is no optimizer."""
        return None if self.optimized is None else id(tensor) in self.optimized

    def add_unit(self, unit: UnitFacts, records: list[OwnershipFacts]) -> None:
        """
        Add a unit and its records. They must refer to `len(self.units)` as their unit.

        The unit's domains and parameter count follow from its records.
        """
        domains: dict[str, list[str]] = {}
        unknown = ""
        for record in records:
            if not isinstance(record.domain, Unknown):
                domains.setdefault(record.domain, []).append(record.fqn)
            elif not unknown:
                unknown = f"the gradient domain of {record.fqn} is not known: {record.domain.unknown}"
        ordered = {domain: tuple(sorted(domains[domain], key=natural_key)) for domain in sorted(domains)}
        count = len({record.identity for record in records})
        told = FrozenDict(ordered)
        self.units.append(evolve(unit, domains=told, domain_unknown=unknown, parameter_count=count))
        self.records.extend(records)

    def position(self) -> tuple[int, int, set[int]]:
        """Where the tables stands, for `forget_since`."""
        return len(self.units), len(self.records), set(self.managed)

    def forget_since(self, position: tuple[int, int, set[int]]) -> None:
        """Drop the units and records that were added since: a collector failed half-way."""
        units, records, self.managed = position
        del self.units[units:], self.records[records:]

    def _intern(self, kind: str, value: Any, table: list[Any]) -> int:
        key = (kind, value)
        index = self._memo.get(key)
        if index is None:
            index = self._memo[key] = len(table)
            table.append(value)
        return index


def marks_of(tensor: Any) -> FrozenDict:
    """The flags that libraries set on a parameter, those that are plain values."""
    values = getattr(tensor, "__dict__", None)
    if not values or _MARKS.isdisjoint(values):
        return EMPTY
    return FrozenDict({name: values[name] for name in MARKS if isinstance(values.get(name), (bool, int))})


def local_domain(requires_grad: bool, domain: str | Unknown) -> str | Unknown:
    """The domain of a parameter that no unit manages: LOCAL when it needs no gradient."""
    return domain if requires_grad else LOCAL
