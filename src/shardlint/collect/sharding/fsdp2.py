"""FSDP2: `fully_shard` with one or several meshes, and the `replicate` that is built on it (torch 2.6 and later)."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import evolve, frozen

from ...boxes import product, rechunk, replay
from ...facts import FrozenDict
from ...facts.sharding import LayoutFacts, OwnershipFacts, UnitFacts
from ..reading import author_type
from .book import Book, marks_of
from .collector import UnitCollector
from .groups import asked_once, has_base
from .guarded import UNKNOWN, Missing, as_bool, first, ints, known, listed

_FLAGS = (
    "reduce_grads",
    "all_reduce_grads",
    "reshard_after_backward",
    "unshard_in_backward",
    "force_sum_reduction_for_comms",
    "reduce_scatter_unused_params",
)
_PRECISION = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")
_ONE_DTYPE = "uniform original parameter dtype"


class Fsdp2(UnitCollector):
    """Reads the state that `fully_shard` and `replicate` attach to modules."""

    name = "fsdp2"

    def collect_units(self, book: Book) -> None:
        """Add every parameter group of every state to the book."""
        units = list(_units(book))
        names = {id(unit.state): book.owner_name(unit.modules) for unit in units}
        for unit in units:
            for index in range(len(unit.groups)):
                _Group(book, unit, names, index).add()


@frozen
class _Unit:
    state: Any
    modules: tuple[Any, ...]
    groups: list[Any]


def _units(book: Book) -> Iterator[_Unit]:
    """Each FSDP state once, with its modules: several modules may share one."""
    reached: dict[int, tuple[Any, list[Any]]] = {}
    for item in book.walk.modules:
        state = state_of(item.module)
        if state is not None:
            reached.setdefault(id(state), (state, []))[1].append(item.module)
    for state, modules in reached.values():
        yield _Unit(state, tuple(listed(first(state, "_modules"))) or tuple(modules), groups_of(state))


def state_of(module: Any) -> Any:
    """The FSDP2 state of a module, None when it has none. Told by the class that `fully_shard` mixes in."""
    if not _is_fsdp_class(type(module)):
        return None
    get = first(module, "_get_fsdp_state")
    try:
        return get() if callable(get) else None
    except Exception:  # a module whose state was taken away
        return None


@asked_once
def _is_fsdp_class(kind: type) -> bool:
    return has_base(kind, "FSDPModule")


def groups_of(state: Any) -> list[Any]:
    """The parameter groups: a list from torch 2.12, one or None before. The plural is asked first (see `first`)."""
    several = first(state, "_fsdp_param_groups")
    if several is not UNKNOWN:
        return listed(several)
    single = first(state, "_fsdp_param_group")
    return [] if single is None or single is UNKNOWN else [single]


class _Group:
    """One parameter group on its way into the book."""

    def __init__(self, book: Book, unit: _Unit, names: dict[int, str], index: int) -> None:
        self.book, self.names, self.index = book, names, index
        self.state, self.modules, self.groups = unit.state, unit.modules, len(unit.groups)
        self.group = unit.groups[index]
        self.owner = names[id(unit.state)]
        self.mesh_info = first(self.group, "mesh_info")
        self.unit = len(book.units)
        self.missing = Missing()

    def add(self) -> None:
        records = [record for param in listed(first(self.group, "fsdp_params")) for record in self.records(param)]
        self.book.add_unit(self.facts(), records)

    def facts(self) -> UnitFacts:
        missing = self.missing
        mesh = first(self.mesh_info, "mesh")
        resharded = missing("reshard_after_forward", first(self.group, "post_forward_mesh_info"))
        pending = missing("pending_all_gather", first(self.group, "_all_gather_result"))
        return UnitFacts(
            name=self.owner if not self.index else f"{self.owner}#{self.index}",
            owner=self.owner,
            kind=self.kind(),
            modules=tuple(self.book.module_name(module) for module in self.modules),
            classes=tuple(author_type(type(module)).__name__ for module in self.modules),
            group=self.index,
            groups=self.groups,
            mesh=self.book.mesh(missing("mesh", mesh)),
            reduction=self.reduction(mesh),
            mixed_precision=self.precision(),
            reshard_after_forward=None if "reshard_after_forward" in missing.names else resharded is not None,
            forward_prefetch=self.prefetch("_states_to_forward_prefetch"),
            backward_prefetch=self.prefetch("_states_to_backward_prefetch"),
            is_root=missing("is_root", first(self.state, "_is_root")),
            unsharded=as_bool(missing("unsharded", first(self.group, "is_unsharded"))),
            pending_all_gather=None if "pending_all_gather" in missing.names else pending is not None,
            hooks_alive=_hooks_alive(self.state, self.modules),
            one_dtype_only=missing("one_dtype_only", self.refuses_mixed_dtypes()),
            flags=self.flags(),
            unknown=tuple(missing.names),
        )

    def refuses_mixed_dtypes(self) -> Any:
        check = first(self.group, "_init_mp_dtypes")
        return UNKNOWN if check is UNKNOWN else _says_one_dtype(getattr(check, "__func__", check))

    def kind(self) -> str:
        shards, replicates = first(self.mesh_info, "shard_mesh_size"), first(self.mesh_info, "replicate_mesh_size")
        if shards is UNKNOWN:
            return "replicate"
        return "fsdp2" if replicates is UNKNOWN else "hsdp"

    def flags(self) -> FrozenDict:
        found = {name: first(self.group, name) for name in _FLAGS}
        return FrozenDict({name: value for name, value in found.items() if isinstance(value, bool)})

    def precision(self) -> FrozenDict:
        policy = self.missing("mixed_precision", first(self.group, "mp_policy"))
        found = {name: first(policy, name) for name in _PRECISION}
        return FrozenDict(
            {
                name: value if isinstance(value, bool) or value is None else self.book.text(value)
                for name, value in found.items()
                if value is not UNKNOWN
            }
        )

    def prefetch(self, name: str) -> tuple[str, ...]:
        states = listed(self.missing(name.removeprefix("_states_to_"), first(self.state, name)))
        return tuple(
            self.names.get(id(state)) or self.book.owner_name(listed(first(state, "_modules"))) for state in states
        )

    def reduction(self, mesh: Any) -> int:
        index = self.book.mesh(mesh)
        ranks = (self.book.meshes[index].ranks or None) if index is not None else None
        if ranks is None:
            self.missing.names.append("reduction ranks")
        return self.book.reduction(ranks, self.divisor(len(ranks) if ranks else None))

    def divisor(self, size: int | None) -> float | None:
        factor = first(self.group, "gradient_divide_factor")
        if isinstance(factor, (int, float)) and not isinstance(factor, bool):
            return float(factor)
        # Up to torch 2.7 a factor lives inside a reduce operation, which does not tell it.
        hidden = factor is UNKNOWN and first(self.group, "reduce_scatter_reduce_op") is not None
        if hidden or size is None:
            self.missing.names.append("divisor")
            return None
        return float(size)

    def records(self, param: Any) -> list[OwnershipFacts]:
        book, info = self.book, first(param, "_module_info")
        tensor, replaced = self.current(param, info)
        identity = book.identity(tensor)
        for item in _tensors_of(param, tensor):
            book.managed.add(id(item))
            if item is not tensor and item is not param.sharded_param:
                book.stand_in(item, identity)
        layout = self.layout(param, tensor)
        spec_dtype, local = tensor.dtype, first(tensor, "_local_tensor")
        requires_grad = bool(tensor.requires_grad)
        common: dict[str, Any] = {
            "owner": self.owner,
            "unit": self.unit,
            "domain": book.domain(layout),
            "layout": layout,
            "identity": identity,
            "origin": book.origin(first(param, "_orig_param_uid")),
            "dtype": book.text(spec_dtype),
            "device": book.text(known(first(local, "device"), tensor.device)),
            "requires_grad": requires_grad,
            "replaced": replaced,
            "optimized": book.is_optimized(tensor),
            "marks": marks_of(tensor),
        }
        return [OwnershipFacts(fqn=name, **common) for name in self.fqns(param, info)]

    def fqns(self, param: Any, info: Any) -> Iterable[str]:
        told = first(param, "_param_fqn")
        fallback = told if isinstance(told, str) else None
        module = first(info, "module")
        names = self.book.names(module, info.param_name, fallback)
        shared = listed(first(info, "shared_modules"))
        if not shared:
            return names
        more = zip(shared, listed(first(info, "shared_param_names")), strict=False)
        found = itertools.chain(names, *(self.book.names(other, name, fallback) for other, name in more))
        return dict.fromkeys(found)

    def current(self, param: Any, info: Any) -> tuple[Any, bool]:
        """
        The sharded parameter, and whether its module registers another tensor by now.

        A DTensor of the same spec is adopted at the next lazy initialisation (`load_state_dict(assign=True)`).
        """
        tensor = param.sharded_param
        registered = first(first(info, "module"), "_parameters")
        now = registered.get(info.param_name) if isinstance(registered, dict) else None
        if now is None or any(now is item for item in _tensors_of(param, tensor)):
            return tensor, False
        spec = first(now, "_spec")
        if spec is not UNKNOWN and spec == first(tensor, "_spec"):
            return now, False
        return tensor, True

    def layout(self, param: Any, tensor: Any) -> int:
        info = known(first(param, "mesh_info"), self.mesh_info)  # per parameter from torch 2.12
        source = _source_spec(param)
        spec = first(tensor, "_spec")
        mesh, placements = (
            (spec.mesh, spec.placements) if spec is not UNKNOWN else (tensor.device_mesh, tensor.placements)
        )
        dim = first(first(param, "fsdp_placement"), "dim")
        local = tensor._local_tensor.shape
        key = (
            "fsdp2",
            tensor.shape,
            local,
            id(mesh),
            placements,
            id(info),
            dim,
            None if source is None else (id(source.mesh), source.placements),
        )
        return self.book.layout(key, lambda: self.new_layout(param, tensor, info, source))

    def new_layout(self, param: Any, tensor: Any, info: Any, source: Any) -> LayoutFacts:
        book, mesh, placements = self.book, tensor.device_mesh, tensor.placements
        dim, is_distributed = first(first(param, "fsdp_placement"), "dim"), first(param, "is_dtensor")
        book.keep(info, mesh, None if source is None else source.mesh)
        hidden = source is None and as_bool(is_distributed) is True
        facts = LayoutFacts(
            global_shape=ints(tensor.shape) or (),
            local_shape=ints(tensor._local_tensor.shape) or (),
            mesh=book.mesh(mesh),
            placements=book.placements(placements),
            source_mesh=None if source is None else book.mesh(source.mesh),
            source_placements=() if source is None else book.placements(source.placements),
            data_dim=dim if isinstance(dim, int) else None,
            unknown=("source", "built") if hidden else (),
        )
        return book.replayed(_built(book, facts, info))


def _built(book: Book, facts: LayoutFacts, info: Any) -> LayoutFacts:
    """Add the boxes by order of construction: the source placements first, then a chunk of that local tensor."""
    if as_bool(first(info, "is_spmd_mesh")) or "built" in facts.unknown:
        return facts  # one mesh for everything: the placements are the construction
    size, rank = first(info, "shard_mesh_size"), first(info, "shard_mesh_rank")
    source = book.meshes[facts.source_mesh] if facts.source_mesh is not None else None
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


def _source_spec(param: Any) -> Any:
    """The layout before FSDP: `_unsharded_dtensor_spec` from torch 2.12, `_tp_spec` before, absent for plain ones."""
    spec = first(param, "_unsharded_dtensor_spec", "_tp_spec")
    return None if spec is UNKNOWN else spec


def _tensors_of(param: Any, tensor: Any) -> list[Any]:
    """Every tensor that the module may register for the parameter, by state: sharded, unsharded, in between."""
    # From __dict__: `unsharded_param` and its like are properties that assert.
    values = vars(param) if hasattr(param, "__dict__") else {}
    found = (values.get("_unsharded_param"), values.get("_sharded_post_forward_param"), values.get("sharded_param"))
    return [tensor, *(item for item in found if item is not None)]


def _hooks_alive(state: Any, modules: Iterable[Any]) -> bool | None:
    """Whether the hooks that unshard are still registered: somebody may have cleared them."""
    handle = first(state, "_pre_forward_hook_handle")
    wanted = {first(item, "id") for item in listed(first(handle, "handles")) or [handle]} - {UNKNOWN}
    if not wanted:
        return None
    hooks = (first(module, "_forward_pre_hooks") for module in modules)
    return any(number in wanted for item in hooks if isinstance(item, dict) for number in item)


@asked_once
def _says_one_dtype(check: Any) -> Any:
    """Whether this version refuses trainable parameters of several dtypes in one group: its own code says so."""
    try:
        return _ONE_DTYPE in inspect.getsource(check)
    except (OSError, TypeError):  # an installation without sources
        return UNKNOWN
