"""FSDP1: `FullyShardedDataParallel`, with and without the original parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from ...boxes import flat_boxes
from ...facts import FrozenDict
from ...facts.sharding import LayoutFacts, OwnershipFacts, UnitFacts
from ...introspect.versioned import UNKNOWN, Missing, as_bool, enum_name, first, ints, known, listed
from .collector import UnitCollector
from .groups import asked_once, has_base, ranks_of
from .ownership_tables import OwnershipTables, marks_of

_PRECISION = ("param_dtype", "reduce_dtype", "buffer_dtype", "cast_forward_inputs")


class Fsdp1(UnitCollector):
    """Reads the handle and the flat parameter of each wrapper."""

    name = "fsdp1"

    def collect_units(self, tables: OwnershipTables) -> None:
        """Add every wrapper that manages parameters."""
        for module in tables.walk.modules:
            if _is_fsdp1(type(module.module)):
                handle = first(module.module, "_handle")
                if handle is not None and handle is not UNKNOWN:
                    _Wrapper(tables, module.module, handle).add()


@asked_once
def _is_fsdp1(kind: type) -> bool:
    return has_base(kind, "FullyShardedDataParallel")


class _Wrapper:
    def __init__(self, tables: OwnershipTables, module: Any, handle: Any) -> None:
        self.tables, self.module, self.handle = tables, module, handle
        self.flat = first(handle, "flat_param")
        self.owner = tables.module_name(module)
        self.unit = len(tables.units)
        self.missing = Missing()
        self.originals = as_bool(first(module, "_use_orig_params"))

    def add(self) -> None:
        records = list(self.records())
        self.tables.add_unit(self.facts(), records)

    def facts(self) -> UnitFacts:
        strategy = enum_name(self.missing("reshard_after_forward", first(self.module, "sharding_strategy")))
        inner = first(self.module, "_fsdp_wrapped_module")
        reduction = self.reduction(strategy)
        return UnitFacts(
            name=self.owner,
            owner=self.owner,
            kind="fsdp1",
            modules=(self.owner,),
            classes=(type(known(inner, self.module)).__name__,),
            reduction=reduction,
            mixed_precision=self.precision(),
            reshard_after_forward=None if strategy is None else strategy in ("FULL_SHARD", "HYBRID_SHARD"),
            is_root=as_bool(first(self.module, "_is_root")),
            one_dtype_only=self.originals is False,
            flags=FrozenDict({} if self.originals is None else {"use_orig_params": self.originals}),
            unknown=tuple(self.missing.names),
        )

    def precision(self) -> FrozenDict:
        policy = first(self.module, "mixed_precision")
        dtypes = {name: first(policy, name) for name in _PRECISION}
        return FrozenDict(
            {
                name: value if isinstance(value, bool) else self.tables.text(value)
                for name, value in dtypes.items()
                if value is not UNKNOWN and value is not None
            }
        )

    def reduction(self, strategy: str | None) -> int:
        ranks = ranks_of(first(self.module, "process_group"))
        between = ranks_of(first(self.module, "_inter_node_pg"))
        if ranks is not None and between is not None and strategy is not None and "HYBRID" in strategy:
            ranks = _product(ranks, between)
        if ranks is None:
            self.missing.names.extend(("reduction ranks", "divisor"))
            return self.tables.reduction(None, None)
        return self.tables.reduction(ranks, float(len(ranks)))

    def records(self) -> Iterator[OwnershipFacts]:
        tables, flat = self.tables, self.flat
        tables.managed.add(id(flat))
        originals = listed(first(flat, "_params"))
        tables.managed.update(map(id, originals))
        # Within a step the modules hold views of the gathered parameter in place of the originals.
        tables.managed.update(id(view) for view in listed(first(flat, "_tensors")) if view is not None)
        infos = listed(first(flat, "_param_infos"))
        shapes, shards = listed(first(flat, "_shapes")), listed(first(flat, "_shard_param_infos"))
        shared = self.shared_names()
        whole = enum_name(first(self.module, "sharding_strategy")) == "NO_SHARD"
        for index, (info, shape) in enumerate(zip(infos, shapes, strict=False)):
            tensor = originals[index] if index < len(originals) else flat
            size = ints(shape) or ()
            shard = shards[index] if index < len(shards) else UNKNOWN
            layout = self.layout(size, (0, math.prod(size)) if whole else _flat_range(size, shard))
            name, module = info[0], info[1]
            identity = tables.identity(tensor if tensor is not flat else info)
            names = [*tables.names(module, name), *shared.get((id(module), name), ())]
            for fqn in dict.fromkeys(names):
                yield OwnershipFacts(
                    fqn=fqn,
                    owner=self.owner,
                    unit=self.unit,
                    domain=tables.domain(layout, (fqn,)),
                    layout=layout,
                    identity=identity,
                    dtype=tables.text(flat.dtype),
                    device=tables.text(flat.device),
                    requires_grad=bool(tensor.requires_grad),
                    optimized=tables.is_optimized(tensor),
                    marks=marks_of(tensor),
                )

    def shared_names(self) -> dict[tuple[int, str], list[str]]:
        """The names of tied parameters, by module and name of the first of them."""
        names_by_tensor: dict[tuple[int, str], list[str]] = {}
        for info in listed(first(self.flat, "_shared_param_infos")):
            key = (id(info.prim_module), info.prim_param_name)
            names_by_tensor.setdefault(key, []).extend(self.tables.names(info.module, info.param_name))
        return names_by_tensor

    def layout(self, shape: tuple[int, ...], flat: tuple[int, int] | None) -> int:
        key = ("fsdp1", shape, flat)
        return self.tables.layout(
            key,
            lambda: LayoutFacts(
                global_shape=shape,
                local_shape=() if flat is None else (flat[1],),
                flat=flat,
                boxes=None if flat is None else flat_boxes(shape, *flat),
                unknown=("boxes", "local_shape") if flat is None else (),
            ),
        )


def _flat_range(shape: tuple[int, ...], shard: Any) -> tuple[int, int] | None:
    """Start and length of the elements that this rank holds; None when the handle does not say."""
    inside = as_bool(first(shard, "in_shard"))
    if inside is None:
        return None
    if not inside:
        return (0, 0)
    start, length = first(shard, "intra_param_start_idx"), first(shard, "numel_in_shard")
    if not isinstance(start, int) or not isinstance(length, int) or start + length > math.prod(shape):
        return None
    return (start, length)


def _product(inner: tuple[int, ...], outer: tuple[int, ...]) -> tuple[int, ...] | None:
    """The ranks of a hybrid of two groups: this rank's two groups span a grid when ranks are laid out evenly."""
    shared = set(inner) & set(outer)
    if len(shared) != 1:
        return None
    here = shared.pop()
    return tuple(sorted(rank + other - here for rank, other in itertools.product(inner, outer)))
