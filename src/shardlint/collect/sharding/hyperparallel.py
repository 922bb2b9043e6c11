"""HyperParallel's HSDP, by duck typing: a module with a `hsdp_scheduler`. The framework itself is never imported."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from ...facts.sharding import LayoutFacts, OwnershipFacts, UnitFacts
from ...introspect.versioned import UNKNOWN, Missing, as_bool, first, ints, known, listed
from .beside import schedulers
from .collector import UnitCollector
from .dtensor import local_shape
from .ownership_tables import OwnershipTables, marks_of


class HyperParallel(UnitCollector):
    """Reads `module.hsdp_scheduler.hsdp_state.hsdp_params` and the prefetch cells of the scheduler."""

    name = "hyperparallel"

    def collect_units(self, tables: OwnershipTables) -> None:
        """Add every module that carries a scheduler, in walk order."""
        for module, scheduler in schedulers(tables.walk):
            _Cell(tables, module, scheduler).add()


@frozen
class _Source:
    """What `source_shard_info` tells: the layout before HSDP sharded the parameter."""

    mesh: Any
    placements: tuple[Any, ...]

    @classmethod
    def of(cls, param: Any) -> _Source:
        info = first(param, "source_shard_info")
        return cls(known(first(info, "mesh")), tuple(listed(first(info, "placements"))))


class _Cell:
    def __init__(self, tables: OwnershipTables, module: Any, scheduler: Any) -> None:
        self.tables, self.module, self.scheduler = tables, module, scheduler
        self.state = first(scheduler, "hsdp_state")
        self.owner = tables.module_name(module)
        self.unit = len(tables.units)
        self.missing = Missing()

    def add(self) -> None:
        params = listed(self.missing("parameters", first(self.state, "hsdp_params")))
        records = [self.record(param, index) for index, param in enumerate(params)]
        self.missing.names.extend(("reduction ranks", "divisor", "one_dtype_only"))
        unit = UnitFacts(
            name=self.owner,
            owner=self.owner,
            kind="hyperparallel",
            modules=(self.owner,),
            classes=(type(self.module).__name__,),
            reduction=self.tables.reduction(None, None),
            forward_prefetch=self.cells("forward_prefetch_cells"),
            backward_prefetch=self.cells("backward_prefetch_cells"),
            is_root=as_bool(first(self.state, "is_root")),
            unknown=tuple(self.missing.names),
        )
        self.tables.add_unit(unit, records)

    def cells(self, name: str) -> tuple[str, ...]:
        for holder in (self.scheduler, self.state, self.module):
            cells = first(holder, name)
            if cells is not UNKNOWN:
                return tuple(self.tables.module_name(cell) for cell in listed(cells))
        return ()

    def record(self, param: Any, index: int) -> OwnershipFacts:
        tables, tensor = self.tables, first(param, "sharded_param")
        told = first(param, "_param_fqn")
        if tensor is not UNKNOWN:
            tables.managed.add(id(tensor))
        identity = tables.identity(param if tensor is UNKNOWN else tensor)
        requires_grad = as_bool(first(tensor, "requires_grad"))
        source = _Source.of(param)
        layout = self.layout(param, tensor, source)
        fqn = told if isinstance(told, str) and told else f"{self.owner}.param[{index}]"
        return OwnershipFacts(
            fqn=fqn,
            owner=self.owner,
            unit=self.unit,
            domain=tables.domain(layout, (fqn,)),
            layout=layout,
            identity=identity,
            dtype=tables.text(known(first(tensor, "dtype"), "")),
            device=tables.text(known(first(tensor, "device"), "")),
            requires_grad=True if requires_grad is None else requires_grad,
            optimized=None if tensor is UNKNOWN else tables.is_optimized(tensor),
            marks=marks_of(tensor),
        )

    def layout(self, param: Any, tensor: Any, source: _Source) -> int:
        told = ints(first(param, "_orig_size"))  # of a scalar it is (), which is told as well
        shape = ints(first(tensor, "shape")) if told is None else told
        local = None if tensor is UNKNOWN else local_shape(tensor)
        facts = LayoutFacts(
            global_shape=shape or (),
            local_shape=local or (),
            source_mesh=self.tables.mesh(source.mesh),
            source_placements=self.tables.placements(source.placements),
            unknown=(
                "boxes",
                "mesh",
                *(("global_shape",) if shape is None else ()),
                *(("local_shape",) if local is None else ()),
            ),
        )
        return self.tables.layout(("hyperparallel", facts), lambda: facts)
