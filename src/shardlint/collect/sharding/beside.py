"""
Layouts that stand beside plain local tensors: on the tensor as an attribute, or on the unit that manages it.

Some frameworks keep a tensor-parallel parameter as the plain local part, with mesh, placements and global shape next to
it. The tensor's own shape is then that of the part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from ...boxes import Placement
from ...facts.sharding import MeshFacts
from ...introspect.versioned import UNKNOWN, first, ints, known, listed
from ...introspect.walk import Walk
from ...introspect.wrappers import registry
from .dtensor import is_dtensor, mesh_facts
from .groups import asked_once
from .placements import placement

_ATTRIBUTES = ("target_layout", "_target_layout", "_sharding_spec", "sharding_spec", "_layout_spec")
_SCHEDULER = "hsdp_scheduler"
_SHAPES = ("tensor_shape", "global_shape", "_orig_size")


@frozen(kw_only=True)
class Beside:
    """The layout of a plain local tensor: the global shape, the live mesh and placements, and the facts of both."""

    shape: tuple[int, ...]
    live_mesh: Any
    live_placements: tuple[Any, ...]
    mesh: MeshFacts
    placements: tuple[Placement, ...]


def layouts_beside(walk: Walk) -> dict[int, Beside]:
    """The layouts beside the tensors of the walked model, by `id()` of the tensor."""
    layouts: dict[int, Beside] = {}
    for tensor, param in _managed(walk):
        _add(layouts, tensor, first(param, "source_shard_info"), first(param, "_orig_size"))
    for walked in walk.tensors:
        values = getattr(walked.tensor, "__dict__", None)
        if not values:
            continue
        if (name := next((name for name in _ATTRIBUTES if values.get(name) is not None), None)) is not None:
            _add(layouts, walked.tensor, values[name], first(values[name], *_SHAPES))
        elif "source_shard_info" in values or "_orig_size" in values:
            _add(layouts, walked.tensor, values.get("source_shard_info"), values.get("_orig_size"))
    return layouts


def schedulers(walk: Walk) -> Iterator[tuple[Any, Any]]:
    """Every module that carries a HSDP scheduler (in its values, among its children, on its class), with it."""
    for module in walk.modules:
        values = module.values
        scheduler = values.get(_SCHEDULER) or registry(module.module, "_modules").get(_SCHEDULER)
        if scheduler is None and _class_has_scheduler(type(module.module)):
            scheduler = known(first(module.module, _SCHEDULER))
        if scheduler is not None:
            yield module.module, scheduler


@asked_once
def _class_has_scheduler(kind: type) -> bool:
    return any(_SCHEDULER in vars(base) for base in kind.__mro__)


def _managed(walk: Walk) -> Iterator[tuple[Any, Any]]:
    for _, scheduler in schedulers(walk):
        for param in listed(first(first(scheduler, "hsdp_state"), "hsdp_params")):
            tensor = first(param, "sharded_param")
            if tensor is not UNKNOWN:
                yield tensor, param


def _add(layouts: dict[int, Beside], tensor: Any, spec: Any, told: Any) -> None:
    """Remember the layout when it says that the tensor is a part of a larger one; storage may also be padded."""
    shape, local = ints(told), ints(first(tensor, "shape"))
    if shape is None or local is None or is_dtensor(tensor):
        return
    if len(shape) == len(local) and all(size <= stored for size, stored in zip(shape, local, strict=True)):
        return
    live_mesh, live = known(first(spec, "mesh", "device_mesh")), tuple(listed(first(spec, "placements")))
    layouts[id(tensor)] = Beside(
        shape=shape,
        live_mesh=live_mesh,
        live_placements=live,
        mesh=mesh_facts(live_mesh),
        placements=tuple(placement(item) for item in live),
    )
