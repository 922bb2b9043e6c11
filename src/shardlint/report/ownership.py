"""The ownership table: who owns each parameter, how it is cut, over which ranks its gradient is summed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attrs import asdict, frozen

from ..facts import OwnershipFacts, ReductionFacts, ShardingFacts, UnitFacts, is_known, thaw
from ..facts.sharding import placement_texts
from ..names import collapse, counted, csv_cell, natural_key, pattern_of, ranges
from .layout import table

UNKNOWN = "unknown"
NAMES = 2
"""The first columns of both tables hold dotted names."""

_UNIT_HEAD = ("unit", "kind", "mesh", "parameters", "reduced over", "divided by")
_HEAD = ("parameter", "owner", "domain", "global", "local", "reduced over", "divided by", "cut")


@frozen(kw_only=True)
class OwnershipRow:
    """
    One parameter in the flat table. Lists are joined by commas; a shape is `8x4`.

    The first seven columns are those of the seed's table; mesh and placements of the source are those before
    data-parallel sharding. `reduced_over` and `divided_by` are empty when nothing reduces the gradient.
    """

    parameter_fqn: str
    owner_fqn: str
    gradient_domain: str
    source_mesh: str
    source_placements: str
    global_shape: str
    local_shape: str
    mesh: str
    placements: str
    boxes: str
    reduced_over: str
    divided_by: str
    dtype: str
    requires_grad: str


def ownership_rows(sharding: ShardingFacts) -> list[OwnershipRow]:
    """The flat table, ordered by name."""
    ordered = sorted(sharding.parameters, key=lambda parameter: (natural_key(parameter.fqn), parameter.owner))
    return [_row(sharding, record) for record in ordered]


def _row(sharding: ShardingFacts, record: OwnershipFacts) -> OwnershipRow:
    layout, reduction = sharding.layout_of(record), sharding.reduction_of(record)
    mesh, source = sharding.mesh(layout.mesh), sharding.mesh(layout.source_mesh)
    boxes = None if layout.boxes is None else "; ".join(box.text() for box in layout.boxes) or "none"
    return OwnershipRow(
        parameter_fqn=record.fqn,
        owner_fqn=f"{record.owner} (replaced since)" if record.replaced else record.owner,
        gradient_domain=record.domain if is_known(record.domain) else UNKNOWN,
        source_mesh=",".join(source.axes) if source else "",
        source_placements=",".join(placement_texts(layout.source_placements)),
        global_shape=_shape(layout.global_shape),
        local_shape=UNKNOWN if "local_shape" in layout.unknown else _shape(layout.local_shape),
        mesh=mesh.text() if mesh else UNKNOWN if "mesh" in layout.unknown else "",
        placements=",".join(placement_texts(layout.placements)),
        boxes=UNKNOWN if boxes is None else boxes,
        reduced_over=_ranks(reduction) if record.managed else "",
        divided_by=_divisor(reduction) if record.managed else "",
        dtype=record.dtype,
        requires_grad="yes" if record.requires_grad else "no",
    )


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _ranks(reduction: ReductionFacts | None) -> str:
    return UNKNOWN if reduction is None or reduction.ranks is None else ranges(reduction.ranks)


def _divisor(reduction: ReductionFacts | None) -> str:
    return UNKNOWN if reduction is None or reduction.divisor is None else f"{reduction.divisor:g}"


def ownership_csv(sharding: ShardingFacts) -> str:
    """The flat table as CSV, with a header line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    rows = ownership_rows(sharding)
    writer.writerow(name for name in OwnershipRow.__annotations__)
    writer.writerows(map(csv_cell, asdict(row).values()) for row in rows)
    return stream.getvalue()


def ownership_json(sharding: ShardingFacts) -> str:
    """The flat table, and the units with their domains, as one JSON document."""
    units = [_unit_data(sharding, unit) for unit in sharding.units]
    data = {"moment": sharding.moment, "parameters": [asdict(row) for row in ownership_rows(sharding)], "units": units}
    return json.dumps(data, indent=2) + "\n"


def _unit_data(sharding: ShardingFacts, unit: UnitFacts) -> dict[str, Any]:
    reduction = sharding.reductions[unit.reduction] if unit.reduction is not None else None
    mesh = sharding.mesh(unit.mesh)
    return {
        "name": unit.name,
        "owner": unit.owner,
        "kind": unit.kind,
        "modules": list(unit.modules),
        "mesh": mesh.text() if mesh else None,
        "parameter_count": unit.parameter_count,
        "domains": thaw(unit.domains),
        "domain_unknown": unit.domain_unknown or None,
        "reduced_over": list(reduction.ranks) if reduction and reduction.ranks is not None else None,
        "divided_by": reduction.divisor if reduction else None,
        "mixed_precision": thaw(unit.mixed_precision),
        "reshard_after_forward": unit.reshard_after_forward,
        "forward_prefetch": list(unit.forward_prefetch),
        "backward_prefetch": list(unit.backward_prefetch),
        "unsharded": unit.unsharded,
        "pending_all_gather": unit.pending_all_gather,
        "unknown": list(unit.unknown),
    }


def ownership_text(sharding: ShardingFacts, width: int, *, collapsed: bool = True) -> list[str]:
    """The units, then the parameters; those that differ by a layer or expert number alone are joined."""
    units = [_unit_row(sharding, unit) for unit in sharding.units]
    rows = [
        (
            row.parameter_fqn,
            row.owner_fqn,
            row.gradient_domain,
            row.global_shape,
            row.local_shape,
            f"ranks {row.reduced_over}" if row.reduced_over else "nothing",
            row.divided_by or "-",
            f"{row.placements} on {row.mesh}" if row.placements else _source_cut(row),
        )
        for row in ownership_rows(sharding)
    ]
    return [
        f"{counted(len(sharding.units), 'unit')}, snapshot taken {sharding.moment}",
        "",
        *table([_UNIT_HEAD, *(_collapse(units) if collapsed else units)], width),
        "",
        *table([_HEAD, *(_collapse(rows) if collapsed else rows)], width),
    ]


def _source_cut(row: OwnershipRow) -> str:
    return f"before sharding {row.source_placements} on ({row.source_mesh})" if row.source_placements else "whole"


def _unit_row(sharding: ShardingFacts, unit: UnitFacts) -> tuple[str, ...]:
    reduction = sharding.reductions[unit.reduction] if unit.reduction is not None else None
    domains = ", ".join(f"{len(names)} {domain.lower()}" for domain, names in unit.domains.items()) or "none"
    mesh = sharding.mesh(unit.mesh)
    return (
        unit.name,
        unit.kind,
        mesh.text() if mesh else "-",
        domains,
        f"ranks {_ranks(reduction)}",
        _divisor(reduction),
    )


def _collapse(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Rows that differ by numbers inside dotted names alone, as one."""
    alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for row in rows:
        key = tuple(pattern_of(cell) if index < NAMES else cell for index, cell in enumerate(row))
        alike.setdefault(key, []).append(row)
    for group in alike.values():
        columns = zip(*group, strict=True)
        yield tuple(column[0] if len(set(column)) == 1 else collapse(column) for column in columns)
