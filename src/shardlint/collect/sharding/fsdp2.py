"""FSDP2: `fully_shard` with one or several meshes, and the `replicate` that is built on it (torch 2.6 and later)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from ...facts import FrozenDict
from ...facts.sharding import UnitFacts
from ...introspect.attributes import author_type
from ...introspect.versioned import UNKNOWN, Missing, as_bool, first, listed
from .collector import UnitCollector
from .fsdp2_parameters import ParameterReader
from .groups import asked_once, has_base
from .ownership_tables import OwnershipTables

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

    def collect_units(self, tables: OwnershipTables) -> None:
        """Add every parameter group of every state to the tables."""
        units = list(_units(tables))
        names = {id(unit.state): tables.owner_name(unit.modules) for unit in units}
        shared = _shared(units)
        for unit in units:
            for index in range(len(unit.groups)):
                _ParameterGroup(tables, unit, names, index).add(shared)


@frozen
class _Unit:
    state: Any
    modules: tuple[Any, ...]
    groups: list[Any]


def _units(tables: OwnershipTables) -> Iterator[_Unit]:
    """Each FSDP state once, with its modules: several modules may share one."""
    reached: dict[int, tuple[Any, list[Any]]] = {}
    for module in tables.walk.modules:
        state = state_of(module.module)
        if state is not None:
            reached.setdefault(id(state), (state, []))[1].append(module.module)
    for state, modules in reached.values():
        yield _Unit(state, tuple(listed(first(state, "_modules"))) or tuple(modules), groups_of(state))


def _shared(units: Iterable[_Unit]) -> dict[int, list[Any]]:
    """The parameters of all groups by the `id` of their sharded tensor, of those that several groups manage."""
    by_tensor: dict[int, list[Any]] = {}
    for unit in units:
        for param in (param for group in unit.groups for param in listed(first(group, "fsdp_params"))):
            by_tensor.setdefault(id(first(param, "sharded_param")), []).append(param)
    return {number: params for number, params in by_tensor.items() if len(params) > 1}


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


class _ParameterGroup:
    """One parameter group on its way into the tables."""

    def __init__(self, tables: OwnershipTables, unit: _Unit, names: dict[int, str], index: int) -> None:
        self.tables, self.names, self.index = tables, names, index
        self.state, self.modules, self.groups = unit.state, unit.modules, len(unit.groups)
        self.group = unit.groups[index]
        self.owner = names[id(unit.state)]
        self.mesh_info = first(self.group, "mesh_info")
        self.missing = Missing()

    def add(self, shared: Mapping[int, list[Any]]) -> None:
        reader = ParameterReader(self.tables, self.owner, len(self.tables.units), self.mesh_info, shared=shared)
        params = listed(first(self.group, "fsdp_params"))
        self.tables.add_unit(self.facts(), [record for param in params for record in reader.records(param)])

    def facts(self) -> UnitFacts:
        missing = self.missing
        mesh = first(self.mesh_info, "mesh")
        resharded = missing("reshard_after_forward", first(self.group, "post_forward_mesh_info"))
        pending = missing("pending_all_gather", first(self.group, "_all_gather_result"))
        return UnitFacts(
            name=self.owner if not self.index else f"{self.owner}#{self.index}",
            owner=self.owner,
            kind=self.kind(),
            modules=tuple(self.tables.module_name(module) for module in self.modules),
            classes=tuple(author_type(type(module)).__name__ for module in self.modules),
            group=self.index,
            groups=self.groups,
            mesh=self.tables.mesh(missing("mesh", mesh)),
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
        flags = {name: first(self.group, name) for name in _FLAGS}
        return FrozenDict({name: value for name, value in flags.items() if isinstance(value, bool)})

    def precision(self) -> FrozenDict:
        policy = self.missing("mixed_precision", first(self.group, "mp_policy"))
        dtypes = {name: first(policy, name) for name in _PRECISION}
        return FrozenDict(
            {
                name: value if isinstance(value, bool) or value is None else self.tables.text(value)
                for name, value in dtypes.items()
                if value is not UNKNOWN
            }
        )

    def prefetch(self, name: str) -> tuple[str, ...]:
        states = listed(self.missing(name.removeprefix("_states_to_"), first(self.state, name)))
        return tuple(
            self.names.get(id(state)) or self.tables.owner_name(listed(first(state, "_modules"))) for state in states
        )

    def reduction(self, mesh: Any) -> int:
        index = self.tables.mesh(mesh)
        ranks = (self.tables.meshes[index].ranks or None) if index is not None else None
        if ranks is None:
            self.missing.names.append("reduction ranks")
        return self.tables.reduction(ranks, self.divisor(len(ranks) if ranks else None))

    def divisor(self, size: int | None) -> float | None:
        factor = first(self.group, "gradient_divide_factor")
        if isinstance(factor, (int, float)) and not isinstance(factor, bool):
            return float(factor)
        # Up to torch 2.7 a factor lives inside a reduce operation, which does not say it.
        hidden = factor is UNKNOWN and first(self.group, "reduce_scatter_reduce_op") is not None
        if hidden or size is None:
            self.missing.names.append("divisor")
            return None
        return float(size)


def _hooks_alive(state: Any, modules: Iterable[Any]) -> bool | None:
    """Whether the hooks that unshard are still registered: somebody may have cleared them."""
    handle = first(state, "_pre_forward_hook_handle")
    wanted = {first(handle_part, "id") for handle_part in listed(first(handle, "handles")) or [handle]} - {UNKNOWN}
    if not wanted:
        return None
    hooks = (first(module, "_forward_pre_hooks") for module in modules)
    return any(number in wanted for hook in hooks if isinstance(hook, dict) for number in hook)


@asked_once
def _says_one_dtype(check: Any) -> Any:
    """Whether this version refuses trainable parameters of several dtypes in one group: its own code says so."""
    try:
        return _ONE_DTYPE in inspect.getsource(check)
    except (OSError, TypeError):  # an installation without sources
        return UNKNOWN
