"""The `sharding` section: every collector of units in turn, then what no unit manages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...facts.sharding import UNMANAGED, OwnershipFacts, ShardingFacts
from ...introspect.attributes import gc_paused
from ...introspect.versioned import first
from ...introspect.walk import Walk, WalkedTensor
from ..optimizer_chain import held_ids
from .book import Book, local_domain, marks_of
from .collector import UnitCollector
from .ddp import Ddp, plain_layout
from .fsdp1 import Fsdp1
from .fsdp2 import Fsdp2
from .hyperparallel import HyperParallel

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

    `optimizer` (one, or several) tells which parameters are optimised; `expert_axes` are names of mesh axes that
    distribute experts beside the known ones; `collectors` are those of packs (each with a `collect_units` like
    `UnitCollector`), asked after the built-in ones. One that raises is handed to `failed` and leaves no trace.
    """
    book = ownership_book(walk, optimizer=optimizer, expert_axes=expert_axes, collectors=collectors, failed=failed)
    return facts_of(book)


def ownership_book(
    walk: Walk,
    *,
    optimizer: Any = None,
    expert_axes: Sequence[str] = (),
    collectors: Iterable[Any] = (),
    failed: Callable[[Any, BaseException], None] | None = None,
) -> Book:
    """Return the filled book, which knows beside the facts which tensors they are about (see `sharding_facts`)."""
    with gc_paused():
        optimized = None if optimizer is None else held_ids(optimizer)
        book = Book(walk, expert_axes=expert_axes, optimized=optimized)
        for built_in in BUILT_IN:
            built_in.collect_units(book)
        for collector in collectors:
            _ask(collector, book, failed)
        for item in walk.tensors:
            if item.kind == "parameter" and id(item.tensor) not in book.managed:
                book.records.extend(_unmanaged(book, item))
        return book


def facts_of(book: Book) -> ShardingFacts:
    """The sharding section of a filled book."""
    return ShardingFacts(
        moment=_moment(book),
        meshes=tuple(book.meshes),
        layouts=tuple(book.layouts),
        reductions=tuple(book.reductions),
        units=tuple(book.units),
        parameters=tuple(book.records),
        expert_axes=book.extra_axes,
    )


def _ask(collector: Any, book: Book, failed: Callable[[Any, BaseException], None] | None) -> None:
    before = book.position()
    try:
        collector.collect_units(book)
    except (Exception, SystemExit) as error:
        book.forget_since(before)
        if failed is None:
            raise
        failed(collector, error)


def _unmanaged(book: Book, item: WalkedTensor) -> list[OwnershipFacts]:
    tensor = item.tensor
    layout = plain_layout(book, tensor)
    requires_grad = bool(first(tensor, "requires_grad"))
    common: dict[str, Any] = {
        "owner": UNMANAGED,
        "domain": local_domain(requires_grad, book.domain(layout)),
        "layout": layout,
        "identity": book.identity(tensor),
        "dtype": book.text(first(tensor, "dtype")),
        "device": book.text(first(tensor, "device")),
        "requires_grad": requires_grad,
        "optimized": book.is_optimized(tensor),
        "marks": marks_of(tensor),
    }
    return [OwnershipFacts(fqn=name, **common) for name in dict.fromkeys(item.names)]


def _moment(book: Book) -> str:
    """Where in a step the snapshot was taken, as far as the units tell."""
    units = [unit for unit in book.units if unit.kind in ("fsdp2", "hsdp", "replicate")]
    if not units:
        return "unknown"
    if any(unit.unsharded for unit in units):
        return "unsharded"
    if all(unit.is_root is None for unit in units):
        return "before-first-forward" if not any("is_root" in unit.unknown for unit in units) else "unknown"
    return "sharded"
