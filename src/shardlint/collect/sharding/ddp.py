"""DDP: `DistributedDataParallel`. Every parameter of its list is averaged over its process group."""

from __future__ import annotations

from typing import Any

from ...boxes import product, replay
from ...facts import FrozenDict
from ...facts.sharding import LayoutFacts, OwnershipFacts, UnitFacts
from ...introspect.versioned import UNKNOWN, Missing, first, ints, listed
from .book import Book, marks_of
from .collector import UnitCollector
from .dtensor import is_dtensor, local_shape, mesh_of
from .groups import asked_once, has_base, ranks_of

_FLAGS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "broadcast_buffers")


class Ddp(UnitCollector):
    """Reads the wrapper's own list of parameters: ignored ones, and those put in later, are not in it."""

    name = "ddp"

    def collect_units(self, book: Book) -> None:
        """Add every wrapper."""
        for item in book.walk.modules:
            if _is_ddp(type(item.module)):
                _add(book, item.module)


@asked_once
def _is_ddp(kind: type) -> bool:
    return has_base(kind, "DistributedDataParallel")


def _add(book: Book, wrapper: Any) -> None:
    missing, owner, unit = Missing(), book.module_name(wrapper), len(book.units)
    parameters = missing("parameters", first(wrapper, "_module_parameters"))
    inner = first(wrapper, "module")
    records = [record for tensor in listed(parameters) for record in _records(book, tensor, owner, unit)]
    flags = {name: first(wrapper, name) for name in _FLAGS}
    facts = UnitFacts(
        name=owner,
        owner=owner,
        kind="ddp",
        modules=(owner,),
        classes=(type(inner).__name__,),
        reduction=_reduction(book, wrapper, missing),
        reshard_after_forward=False,
        is_root=owner == book.module_name(book.walk.model),
        one_dtype_only=False,
        flags=FrozenDict({name: value for name, value in flags.items() if isinstance(value, bool)}),
        unknown=tuple(missing.names),
    )
    book.add_unit(facts, records)


def _reduction(book: Book, wrapper: Any, missing: Missing) -> int:
    ranks = ranks_of(first(wrapper, "process_group"))
    hooks = first(wrapper, "_comm_hooks")
    if ranks is None:
        missing.names.append("reduction ranks")
    if ranks is None or hooks is UNKNOWN or listed(hooks):
        missing.names.append("divisor")  # a communication hook divides as it likes
        return book.reduction(ranks, None)
    return book.reduction(ranks, float(len(ranks)))


def _records(book: Book, tensor: Any, owner: str, unit: int) -> list[OwnershipFacts]:
    book.managed.add(id(tensor))
    walked = book.walk.find_tensor(tensor)
    layout = plain_layout(book, tensor)
    return [
        OwnershipFacts(
            fqn=name,
            owner=owner,
            unit=unit,
            domain=book.domain(layout),
            layout=layout,
            identity=book.identity(tensor),
            dtype=book.text(tensor.dtype),
            device=book.text(tensor.device),
            requires_grad=bool(tensor.requires_grad),
            replaced=walked is None,
            optimized=book.is_optimized(tensor),
            marks=marks_of(tensor),
        )
        for name in (dict.fromkeys(walked.names) if walked is not None else [f"{owner}.<replaced>"])
    ]


def plain_layout(book: Book, tensor: Any) -> int:
    """The layout of a tensor that no data-parallel sharding cuts: plain, or a DTensor as it is."""
    shape = ints(first(tensor, "shape"))
    if shape is None or not is_dtensor(tensor):
        return book.layout(("plain", shape), lambda: _whole(shape))
    mesh, placements = mesh_of(tensor), tensor.placements
    local = local_shape(tensor)
    key = ("dtensor", shape, local, id(mesh), tuple(placements))
    return book.layout(key, lambda: _distributed(book, shape, local, mesh, placements))


def _whole(shape: tuple[int, ...] | None) -> LayoutFacts:
    if shape is None:
        return LayoutFacts(global_shape=(), local_shape=(), unknown=("global_shape", "local_shape", "boxes"))
    whole = product(replay(shape, (), (), ()))
    return LayoutFacts(global_shape=shape, local_shape=shape, boxes=whole, built=whole, replayed_shape=shape)


def _distributed(
    book: Book, shape: tuple[int, ...], local: tuple[int, ...] | None, mesh: Any, placements: Any
) -> LayoutFacts:
    index, kinds = book.mesh(mesh), book.placements(placements)
    facts = LayoutFacts(
        global_shape=shape,
        local_shape=local or (),
        mesh=index,
        placements=kinds,
        source_mesh=index,
        source_placements=kinds,
        unknown=() if local is not None else ("local_shape",),
    )
    return book.replayed(facts)
