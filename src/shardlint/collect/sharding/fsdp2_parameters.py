"""The parameters of an FSDP2 group: names, cut and state of each. Written for many: a model may have fifty thousand."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve

from ...boxes import product, rechunk, replay
from ...facts import EMPTY
from ...facts.sharding import LayoutFacts, OwnershipFacts
from ...introspect.versioned import UNKNOWN, as_bool, first, ints, known, listed
from .ownership_tables import OwnershipTables, marks_of

_OTHER_STATES = ("_unsharded_param", "_sharded_post_forward_param")
_ATTRIBUTES = (
    *_OTHER_STATES,
    "_module_info",
    "sharded_param",
    "mesh_info",
    "fsdp_placement",
    "is_dtensor",
    "_unsharded_dtensor_spec",
    "_tp_spec",
    "_orig_param_uid",
    "_param_fqn",
)


_NONE: Mapping[int, list[Any]] = {}


class ParameterReader:
    """
    Reads the managed parameters of one group into ownership records.

    `shared` are the parameters of all groups by the `id` of their sharded tensor, where several manage the same one.
    """

    def __init__(
        self, tables: OwnershipTables, owner: str, unit: int, mesh_info: Any, *, shared: Mapping[int, list[Any]] = _NONE
    ) -> None:
        self.tables, self.owner, self.unit, self.mesh_info = tables, owner, unit, mesh_info
        self.shared = shared
        self.find = tables.walk.find_tensor

    def records(self, param: Any) -> list[OwnershipFacts]:
        """The record of a parameter under each of its names."""
        tables, values = self.tables, values_of(param)
        tensor, replaced = values["sharded_param"], False
        others: Sequence[Any] = ()
        if values.get("_unsharded_param") is not None or values.get("_sharded_post_forward_param") is not None:
            others = [state for state in map(values.get, _OTHER_STATES) if state is not None]
        # Whichever of its tensors the model registers now has the names, those of ties included.
        walked = self.find(tensor) or next(filter(None, map(self.find, others)), None)
        if walked is None:
            tensor, replaced = self.elsewhere(values, tensor)
            walked = None if replaced else self.find(tensor)
        names = self.names(values) if walked is None else walked.names
        if id(tensor) in self.shared:
            names = self.shared_names(self.shared[id(tensor)])
        layout, dtype, device = self.kind(values, tensor)
        domain = tables.domain(layout, names)
        identity, origin = tables.identity(tensor), tables.origin(values.get("_orig_param_uid"))
        tables.managed.add(id(tensor))
        for other in others:
            tables.managed.add(id(other))
            tables.stand_in(other, identity)
        requires_grad, optimized = tensor.requires_grad, tables.is_optimized(tensor)
        marks = marks_of(tensor) if tensor.__dict__ else EMPTY
        return [
            OwnershipFacts(
                fqn=name,
                owner=self.owner,
                unit=self.unit,
                domain=domain,
                layout=layout,
                identity=identity,
                origin=origin,
                dtype=dtype,
                device=device,
                requires_grad=requires_grad,
                replaced=replaced,
                optimized=optimized,
                marks=marks,
            )
            for name in (names if len(names) == 1 else dict.fromkeys(names))
        ]

    def shared_names(self, params: Iterable[Any]) -> list[str]:
        """
        The names that several units have for one sharded tensor.

        Within a step, and after it where a unit stays unsharded, each unit registers a full copy of its own, so that
        the walk sees two parameters where there is one.
        """
        names: dict[str, None] = {}
        for values in map(values_of, params):
            states = (values["sharded_param"], *map(values.get, _OTHER_STATES))
            walked = next((found for state in states if state is not None and (found := self.find(state))), None)
            names.update(dict.fromkeys(self.names(values) if walked is None else walked.names))
        return list(names)

    def names(self, values: Mapping[str, Any]) -> list[str]:
        """Every FQN under which the modules of the parameter registered it when they were wrapped."""
        info, told = values["_module_info"], values.get("_param_fqn")
        names = self.tables.names(info.module, info.param_name, told if isinstance(told, str) else None)
        shared = zip(listed(first(info, "shared_modules")), listed(first(info, "shared_param_names")), strict=False)
        return list(itertools.chain(names, *(self.tables.names(module, name) for module, name in shared)))

    def elsewhere(self, values: Mapping[str, Any], tensor: Any) -> tuple[Any, bool]:
        """
        The parameter that counts, and whether its module registers another tensor than the unit manages.

        A DTensor of the same spec is adopted at the next lazy initialisation (`load_state_dict(assign=True)`).
        """
        info = values["_module_info"]
        now = known(first(info.module, "_parameters"), {}).get(info.param_name)
        if now is None:
            return tensor, False  # a module outside the tree that is looked at
        spec = first(now, "_spec")
        adopted = spec is not UNKNOWN and spec == first(tensor, "_spec")
        return (now, False) if adopted else (tensor, now is not tensor)

    def kind(self, values: Mapping[str, Any], tensor: Any) -> tuple[int, str, str]:
        """Layout, dtype and device: the same for most parameters of a model, so looked up by one key."""
        source = values.get("_unsharded_dtensor_spec", values.get("_tp_spec"))  # the former from torch 2.12
        info = values.get("mesh_info", self.mesh_info)  # per parameter from torch 2.12
        local = tensor._local_tensor
        mesh, placements, shape = _cut_of(tensor)
        key: Hashable = (
            shape,
            local.shape,
            local.dtype,
            local.device,
            id(mesh),
            placements,
            id(info),
            getattr(values.get("fsdp_placement"), "dim", None),
            None if source is None else (id(source.mesh), source.placements),
        )
        kind = self.tables.kinds.get(key)
        if kind is None:
            layout = self.layout(values, tensor, info, source)
            texts = self.tables.text(local.dtype), self.tables.text(local.device)
            kind = self.tables.kinds[key] = (layout, *texts)
        return kind

    def layout(self, values: Mapping[str, Any], tensor: Any, info: Any, source: Any) -> int:
        """The index of the parameter's layout in the tables."""
        tables = self.tables
        mesh, placements, shape = _cut_of(tensor)
        dim = first(values.get("fsdp_placement"), "dim")
        tables.keep(info, mesh, None if source is None else source.mesh)
        hidden = source is None and values.get("is_dtensor") is True
        facts = LayoutFacts(
            global_shape=ints(shape) or (),
            local_shape=ints(tensor._local_tensor.shape) or (),
            mesh=tables.mesh(mesh),
            placements=tables.placements(placements),
            source_mesh=None if source is None else tables.mesh(source.mesh),
            source_placements=() if source is None else tables.placements(source.placements),
            data_dim=dim if isinstance(dim, int) else None,
            unknown=("source", "built") if hidden else (),
        )
        whole = tables.replayed(_built(tables, facts, info))
        return tables.layout(whole, lambda: whole)


def values_of(param: Any) -> Mapping[str, Any]:
    """
    The attributes of a managed parameter by name, straight from the instance: some of torch's properties assert.

    Reading one `__dict__` instead of a dozen guarded attributes is what makes fifty thousand parameters quick.
    """
    values: Mapping[str, Any] = getattr(param, "__dict__", {})
    if "sharded_param" in values and "_module_info" in values:
        return values
    pairs = ((name, first(param, name)) for name in _ATTRIBUTES)
    return {name: value for name, value in pairs if value is not UNKNOWN}


def _cut_of(tensor: Any) -> tuple[Any, Any, Any]:
    """Mesh, placements and global shape: from the spec, which is plain Python, where there is one."""
    try:
        spec = tensor._spec
        return spec.mesh, spec.placements, spec.tensor_meta.shape
    except AttributeError:
        return tensor.device_mesh, tensor.placements, tensor.shape


def _built(tables: OwnershipTables, facts: LayoutFacts, info: Any) -> LayoutFacts:
    """Add the boxes by order of construction: the source placements first, then a chunk of that local tensor."""
    if as_bool(first(info, "is_spmd_mesh")) or "built" in facts.unknown:
        return facts  # one mesh for everything: the placements are the construction
    size, rank = first(info, "shard_mesh_size"), first(info, "shard_mesh_rank")
    source = tables.meshes[facts.source_mesh] if facts.source_mesh is not None else None
    try:
        if source is None:
            dims = replay(facts.global_shape, (), (), ())
        elif source.coordinate is None:
            raise ValueError("this rank is not part of the mesh")
        else:
            dims = replay(facts.global_shape, source.shape, source.coordinate, facts.source_placements)
        if isinstance(size, int) and isinstance(rank, int) and facts.data_dim is not None:
            dims = rechunk(dims, facts.data_dim, size, rank)
        elif size is not UNKNOWN or first(info, "replicate_mesh_size") is UNKNOWN:
            raise ValueError("how the data-parallel ranks cut the parameter is unknown")
    except ValueError:
        return evolve(facts, unknown=(*facts.unknown, "built"))
    return evolve(facts, built=product(dims))
