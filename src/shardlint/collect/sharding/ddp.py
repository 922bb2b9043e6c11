"""DDP: `DistributedDataParallel`. Every parameter of its list is averaged over its process group."""

from __future__ import annotations

from typing import Any

from ...boxes import Placement, product, replay
from ...facts import FrozenDict
from ...facts.sharding import LayoutFacts, OwnershipFacts, UnitFacts
from ...introspect.versioned import UNKNOWN, Missing, first, ints, listed
from .collector import UnitCollector
from .dtensor import is_dtensor, local_shape, mesh_of
from .groups import asked_once, has_base, ranks_of
from .ownership_tables import OwnershipTables, marks_of

_FLAGS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "broadcast_buffers")


class Ddp(UnitCollector):
    """Reads the wrapper's own list of parameters: ignored ones, and those put in later, are not in it."""

    name = "ddp"

    def collect_units(self, tables: OwnershipTables) -> None:
        """Add every wrapper."""
        for module in tables.walk.modules:
            if _is_ddp(type(module.module)):
                _add(tables, module.module)


@asked_once
def _is_ddp(kind: type) -> bool:
    return has_base(kind, "DistributedDataParallel")


def _add(tables: OwnershipTables, wrapper: Any) -> None:
    missing, owner, unit = Missing(), tables.module_name(wrapper), len(tables.units)
    parameters = missing("parameters", first(wrapper, "_module_parameters"))
    inner = first(wrapper, "module")
    records = [record for tensor in listed(parameters) for record in _records(tables, tensor, owner, unit)]
    flags = {name: first(wrapper, name) for name in _FLAGS}
    facts = UnitFacts(
        name=owner,
        owner=owner,
        kind="ddp",
        modules=(owner,),
        classes=(type(inner).__name__,),
        reduction=_reduction(tables, wrapper, missing),
        reshard_after_forward=False,
        is_root=owner == tables.module_name(tables.walk.model),
        one_dtype_only=False,
        reduced=_reduced(wrapper),
        flags=FrozenDict({name: value for name, value in flags.items() if isinstance(value, bool)}),
        unknown=tuple(missing.names),
    )
    tables.add_unit(facts, records)


def _reduced(wrapper: Any) -> int | None:
    """How many parameters the reducer knows: those that needed a gradient when the wrapper was made."""
    ask = first(wrapper, "_get_ddp_logging_data")
    try:
        count = ask()["num_parameter_tensors"]
    except Exception:  # a private method of torch
        return None
    return count if isinstance(count, int) else None


def _reduction(tables: OwnershipTables, wrapper: Any, missing: Missing) -> int:
    ranks = ranks_of(first(wrapper, "process_group"))
    hooks = first(wrapper, "_comm_hooks")
    if ranks is None:
        missing.names.append("reduction ranks")
    if ranks is None or hooks is UNKNOWN or listed(hooks):
        missing.names.append("divisor")  # a communication hook divides as it likes
        return tables.reduction(ranks, None)
    return tables.reduction(ranks, float(len(ranks)))


def _records(tables: OwnershipTables, tensor: Any, owner: str, unit: int) -> list[OwnershipFacts]:
    tables.managed.add(id(tensor))
    walked = tables.walk.find_tensor(tensor)
    layout = plain_layout(tables, tensor)
    return [
        OwnershipFacts(
            fqn=name,
            owner=owner,
            unit=unit,
            domain=tables.domain(layout, (name,)),
            layout=layout,
            identity=tables.identity(tensor),
            dtype=tables.text(tensor.dtype),
            device=tables.text(tensor.device),
            requires_grad=bool(tensor.requires_grad),
            replaced=walked is None,
            optimized=tables.is_optimized(tensor),
            marks=marks_of(tensor),
        )
        for name in (dict.fromkeys(walked.names) if walked is not None else [f"{owner}.<replaced>"])
    ]


def plain_layout(tables: OwnershipTables, tensor: Any) -> int:
    """The layout of a tensor that no data-parallel sharding cuts: plain, a DTensor, or a part with its layout."""
    shape = ints(first(tensor, "shape"))
    beside = tables.beside.get(id(tensor))
    if beside is not None:
        mesh, placements = beside.live_mesh, tables.placements(beside.live_placements)
        key = ("beside", beside.shape, shape, id(mesh), placements)
        return tables.layout(key, lambda: _distributed(tables, beside.shape, shape, mesh, placements))
    if shape is None or not is_dtensor(tensor):
        return tables.layout(("plain", shape), lambda: _whole(shape))
    mesh, placements = mesh_of(tensor), tables.placements(tensor.placements)
    local = local_shape(tensor)
    key = ("dtensor", shape, local, id(mesh), placements)
    return tables.layout(key, lambda: _distributed(tables, shape, local, mesh, placements))


def _whole(shape: tuple[int, ...] | None) -> LayoutFacts:
    if shape is None:
        return LayoutFacts(global_shape=(), local_shape=(), unknown=("global_shape", "local_shape", "boxes"))
    whole = product(replay(shape, (), (), ()))
    return LayoutFacts(global_shape=shape, local_shape=shape, boxes=whole, built=whole, replayed_shape=shape)


def _distributed(
    tables: OwnershipTables,
    shape: tuple[int, ...],
    local: tuple[int, ...] | None,
    mesh: Any,
    placements: tuple[Placement, ...],
) -> LayoutFacts:
    index = tables.mesh(mesh)
    facts = LayoutFacts(
        global_shape=shape,
        local_shape=local or (),
        mesh=index,
        placements=placements,
        source_mesh=index,
        source_placements=placements,
        unknown=() if local is not None else ("local_shape",),
    )
    return tables.replayed(facts)
