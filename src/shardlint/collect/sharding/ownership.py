"""The `sharding` section: every collector of units in turn, then what no unit manages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...facts.sharding import UNMANAGED, OwnershipFacts, ShardingFacts
from ...introspect.attributes import gc_paused
from ...introspect.versioned import first
from ...introspect.walk import Walk, WalkedTensor
from ..optimizer_chain import held_ids
from .collector import UnitCollector
from .ddp import Ddp, plain_layout
from .fsdp1 import Fsdp1
from .fsdp2 import Fsdp2
from .hyperparallel import HyperParallel
from .ownership_tables import OwnershipTables, local_domain, marks_of

BUILT_IN: tuple[UnitCollector, ...] = (HyperParallel(), Fsdp2(), Fsdp1(), Ddp())


def sharding_facts(
    walk: Walk,
    *,
    optimizer: Any = None,
    expert_axes: Sequence[str] = (),
    collectors: Iterable[Any] = (),
    failed: Callable[[Any, BaseException], None] | None = None,
) -> ShardingFacts:
    """
    Return who owns each parameter of the walked model.

    `optimizer` (one, or several) says which parameters are optimised; `expert_axes` are names of mesh axes that
    distribute experts beside the known ones; `collectors` are those of packs (each with a `collect_units` like
    `UnitCollector`), asked after the built-in ones. One that raises is handed to `failed` and leaves no trace.
    """
    tables = collect_ownership(walk, optimizer=optimizer, expert_axes=expert_axes, collectors=collectors, failed=failed)
    return facts_of(tables)


def collect_ownership(
    walk: Walk,
    *,
    optimizer: Any = None,
    expert_axes: Sequence[str] = (),
    collectors: Iterable[Any] = (),
    failed: Callable[[Any, BaseException], None] | None = None,
) -> OwnershipTables:
    """Return the filled tables, which knows beside the facts which tensors they are about (see `sharding_facts`)."""
    with gc_paused():
        optimized = None if optimizer is None else held_ids(optimizer)
        tables = OwnershipTables(walk, expert_axes=expert_axes, optimized=optimized)
        for built_in in BUILT_IN:
            built_in.collect_units(tables)
        for collector in collectors:
            _ask(collector, tables, failed)
        for tensor in walk.tensors:
            if tensor.kind == "parameter" and id(tensor.tensor) not in tables.managed:
                tables.records.extend(_unmanaged(tables, tensor))
        return tables


def facts_of(tables: OwnershipTables) -> ShardingFacts:
    """The sharding section of a filled tables."""
    return ShardingFacts(
        moment=_moment(tables),
        meshes=tuple(tables.meshes),
        layouts=tuple(tables.layouts),
        reductions=tuple(tables.reductions),
        units=tuple(tables.units),
        parameters=tuple(tables.records),
        expert_axes=tables.extra_axes,
    )


def _ask(collector: Any, tables: OwnershipTables, failed: Callable[[Any, BaseException], None] | None) -> None:
    before = tables.position()
    try:
        collector.collect_units(tables)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, and the private ones of torch, pytest, asyncio
        tables.forget_since(before)
        if failed is None:
            raise
        failed(collector, error)


def _unmanaged(tables: OwnershipTables, walked: WalkedTensor) -> list[OwnershipFacts]:
    tensor = walked.tensor
    layout = plain_layout(tables, tensor)
    requires_grad = bool(first(tensor, "requires_grad"))
    common: dict[str, Any] = {
        "owner": UNMANAGED,
        "domain": local_domain(requires_grad, tables.domain(layout, walked.names)),
        "layout": layout,
        "identity": tables.identity(tensor),
        "dtype": tables.text(first(tensor, "dtype")),
        "device": tables.text(first(tensor, "device")),
        "requires_grad": requires_grad,
        "optimized": tables.is_optimized(tensor),
        "marks": marks_of(tensor),
    }
    return [OwnershipFacts(fqn=name, **common) for name in dict.fromkeys(walked.names)]


def _moment(tables: OwnershipTables) -> str:
    """Where in a step the snapshot was taken, as far as the units tell."""
    units = [unit for unit in tables.units if unit.kind in ("fsdp2", "hsdp", "replicate")]
    if not units:
        return "unknown"
    if any(unit.unsharded for unit in units):
        return "unsharded"
    if all(unit.is_root is None for unit in units):
        return "before-first-forward" if not any("is_root" in unit.unknown for unit in units) else "unknown"
    return "sharded"
