"""DTensors, meshes and placements, told by what they have and not by their class: those changed between versions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...boxes import OTHER, PARTIAL, REPLICATE, SHARD, STRIDED, Placement
from ...facts.sharding import MeshFacts
from ...introspect.versioned import UNKNOWN, first, ints, known

STORAGE_AXES = ("efsdp", "etp", "edp", "expert_dp", "dp_shard_mod_ep")
"""Names of mesh axes that data-parallel sharding of experts runs along, beside `ep`, `expert` and `ep_*`."""


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


def placement(live: Any) -> Placement:
    """One placement. The class name is asked first: a strided shard is a `Shard` up to torch 2.9 and none from 2.10."""
    name, text = type(live).__name__, repr(live)
    dim = first(live, "dim")
    if name == "_StridedShard":
        return Placement(STRIDED, int(dim), int(live.split_factor), text)
    if name in ("Shard", "_MaskShard"):
        return Placement(SHARD, int(dim), None, text)
    if name == "Replicate":
        return Placement(REPLICATE, None, None, text)
    if "Partial" in name:
        return Placement(PARTIAL, None, None, text)
    return _stranger(live, dim, text)


def _stranger(live: Any, dim: Any, text: str) -> Placement:
    """A placement of another framework: it may answer `is_shard()` and its like, or be called something like it."""
    for kind, question in ((SHARD, "is_shard"), (REPLICATE, "is_replicate"), (PARTIAL, "is_partial")):
        answer = first(live, question)
        try:
            if callable(answer) and answer() is True:
                return Placement(kind, int(dim) if kind == SHARD else None, None, text)
        except Exception:
            continue
    if "shard" in text.lower() and isinstance(dim, int):
        return Placement(SHARD, dim, None, text)
    return Placement(OTHER, None, None, text)


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
    return MeshFacts(
        axes=tuple(str(name) for name in names) if names else (),
        shape=shape,
        ranks=_ranks(table, shape),
        coordinate=place,
        device_type=str(known(first(mesh, "device_type"), "")),
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


def is_expert(axes: Sequence[str], placements: Sequence[Placement], more: Sequence[str] = ()) -> bool:
    """Whether a layout is expert-parallel: an expert axis (or one of `more`) in its mesh, and some shard."""
    named = any(is_expert_axis(axis) or axis in more for axis in axes)
    return named and any(mark.is_shard for mark in placements)
