"""DTensors, meshes and placements, told by what they have and not by their class: those changed between versions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...boxes import OTHER, Placement
from ...facts import Unknown
from ...facts.sharding import DENSE, EXPERT, MeshFacts
from ...introspect.versioned import UNKNOWN, first, ints, known

STORAGE_AXES = ("efsdp", "etp", "edp", "expert_dp", "dp_shard_mod_ep")
"""Names of mesh axes that data-parallel sharding of experts runs along, beside `ep`, `expert` and `ep_*`."""

_KINDS = frozenset(
    {"dp", "ddp", "data", "fsdp", "hsdp", "replicate", "shard", "tp", "tensor", "mp", "cp", "context", "sp", "sequence"}
    | {"seq", "ulysses", "ring", "pp", "pipeline", "edp", "etp", "efsdp"}
)
"""Words in the names of mesh axes by which the kinds of parallelism that do not distribute experts are called."""


def is_dtensor(tensor: Any) -> bool:
    """Whether the tensor has placements on a device mesh."""
    return first(tensor, "placements") is not UNKNOWN and mesh_of(tensor) is not None


def mesh_of(tensor: Any) -> Any:
    """The device mesh of a DTensor, None when there is none."""
    return known(first(tensor, "device_mesh", "_device_mesh"))


def local_shape(tensor: Any) -> tuple[int, ...] | None:
    """The shape of the local part, of the tensor itself when it has none; None when it cannot be read."""
    local = first(tensor, "_local_tensor")  # `to_local()` costs seventy times as much
    if local is UNKNOWN:
        to_local = first(tensor, "to_local")
        local = _without_grad(to_local) if callable(to_local) else tensor
    return ints(first(local, "shape"))


def _without_grad(to_local: Any) -> Any:
    try:
        import torch

        with torch.no_grad():
            return to_local()
    except Exception:  # stand-ins and other frameworks
        return UNKNOWN


def mesh_facts(mesh: Any) -> MeshFacts:
    """The facts of a device mesh; what it does not have stays empty."""
    names = known(first(mesh, "mesh_dim_names"))
    table = first(mesh, "mesh")
    shape = ints(known(first(table, "shape"))) or ints(known(first(mesh, "shape", "mesh_shape"))) or ()
    coordinate = first(mesh, "get_coordinate")
    try:
        place = ints(coordinate()) if callable(coordinate) else None
    except Exception:  # a mesh without process group
        place = None
    axes = tuple(str(name) for name in names) if names else ()
    return MeshFacts(
        axes=axes,
        beyond=_beyond(mesh, axes),
        shape=shape,
        ranks=_ranks(table, shape),
        coordinate=place,
        device_type=str(known(first(mesh, "device_type"), "")),
    )


def _beyond(mesh: Any, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of the mesh that this one was cut from which it leaves out; axes of one rank do not count."""
    whole = known(first(mesh, "_root_mesh"))
    names = known(first(whole, "mesh_dim_names")) if whole is not None else None
    shape = ints(known(first(first(whole, "mesh"), "shape"))) or ()
    return tuple(
        str(name) for name, size in zip(names or (), shape, strict=False) if size > 1 and str(name) not in axes
    )


def _ranks(table: Any, shape: Sequence[int]) -> tuple[int, ...]:
    for reading in (lambda: table.flatten().tolist(), lambda: _flat(list(table))):
        try:
            ranks = ints(reading())
        except Exception:
            continue
        if ranks is not None and len(ranks) == math.prod(shape or (len(ranks),)):
            return ranks
    return ()


def _flat(items: Any) -> list[int]:
    return [
        number for element in items for number in (_flat(element) if isinstance(element, (list, tuple)) else [element])
    ]


def is_expert_axis(name: str) -> bool:
    """Whether a mesh axis of that name distributes experts: `ep`, `expert` or `ep_*`."""
    return name in ("ep", "expert") or name.startswith("ep_")


def expert_domain(axes: Sequence[str], placements: Sequence[Placement], more: Sequence[str] = ()) -> str | Unknown:
    """
    EXPERT for an expert axis (or one of `more`) in the mesh of a layout that has some shard, else DENSE.

    A placement that is not understood is a shard when it calls itself one, and else unknown.
    """
    if not any(is_expert_axis(axis) or axis in more for axis in axes):
        return DENSE
    if any(mark.is_shard or (mark.kind == OTHER and "Shard" in mark.text) for mark in placements):
        return EXPERT
    strange = [mark.text for mark in placements if mark.kind == OTHER]
    return Unknown(f"what the placement {strange[0]} on an expert axis does is not known") if strange else DENSE


def nameless_cut(axes: Sequence[str], placements: Sequence[Placement], more: Sequence[str] = ()) -> str | None:
    """Along which axis a layout is cut that no convention names: its name or number, None when there is none."""
    for index, mark in enumerate(placements):
        name = axes[index] if index < len(axes) else ""
        known_name = is_expert_axis(name) or name in more or any(word in _KINDS for word in name.lower().split("_"))
        if (mark.is_shard or mark.kind == OTHER) and not known_name:
            return name or f"number {index}"
    return None


def names_experts(fqn: str) -> bool:
    """Whether a parameter belongs to experts that are distributed, by its name: shared ones are dense."""
    return any(part.endswith("experts") and "shared" not in part for part in fqn.lower().split("."))
