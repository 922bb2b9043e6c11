"""The `optimizer` section: what the optimizers hold, matched by identity with the parameters that the model has now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve

from ..facts import (
    EMPTY,
    FrozenDict,
    HeldTensor,
    LiveParameter,
    OptimizerFacts,
    OptimizerInstance,
    OrphanState,
    ParameterGroup,
    TensorLayout,
    TensorSpec,
    Unknown,
)
from ..introspect.attributes import gc_paused, qualified, read
from ..introspect.plain import encodable, plain
from ..introspect.versioned import UNKNOWN, first, ints
from .live_tensors import LiveTensor, is_tensor, live_parameters
from .optimizer_chain import MAIN_PAIRS, Leaf, groups_of, leaves, tensors_of
from .sharding import OwnershipTables
from .sharding.dtensor import local_shape, mesh_of

MAIN = ("main_param", "_main_param", "master_param", "fp32_param")
MAIN_GRADIENT = ("main_grad", "_main_grad")
_NOT_OPTIONS = ("params", "param_names")


def optimizer_facts(tables: OwnershipTables, optimizer: Any) -> OptimizerFacts:
    """
    Return what `optimizer` (one, several, wrapped) holds of the model that the filled `tables` is about.

    Nothing is read but attributes, groups and state that are there: no step, no state that a step would create.
    """
    with gc_paused():
        return _Collection(tables, optimizer).facts()


class SpecTable:
    """The specs of tensors, each once. Meshes whose ids are used as keys are kept alive."""

    def __init__(self) -> None:
        self.specs: list[TensorSpec] = []
        self._indices: dict[Any, int] = {}
        self._layouts: dict[Any, TensorLayout] = {}
        self._kept: list[Any] = []

    def add(self, tensor: Any) -> int:
        """The index of the tensor's spec."""
        mesh = mesh_of(tensor) if first(tensor, "placements") is not UNKNOWN else None
        placements = () if mesh is None else tuple(map(repr, tensor.placements))
        local = ints(tensor.shape) if mesh is None else local_shape(tensor)
        key = (tensor.shape, local, tensor.dtype, tensor.device, id(mesh), placements)
        index = self._indices.get(key)
        if index is None:
            index = self._indices[key] = self._append(tensor, local or (), mesh, placements)
        return index

    def _append(self, tensor: Any, local: tuple[int, ...], mesh: Any, placements: tuple[str, ...]) -> int:
        self._kept.append(mesh)
        spec = TensorSpec(
            shape=ints(tensor.shape) or (),
            local_shape=local,
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=str(tensor.device),
            layout=None if mesh is None else _layout(mesh, placements),
        )
        if spec not in self._indices:
            self._indices[spec] = len(self.specs)
            self.specs.append(spec)
        return self._indices[spec]


def _layout(mesh: Any, placements: tuple[str, ...]) -> TensorLayout:
    names = read(mesh, "mesh_dim_names") or ()
    shape = ints(first(first(mesh, "mesh"), "shape")) or ints(first(mesh, "shape", "mesh_shape")) or ()
    return TensorLayout(mesh_axes=tuple(map(str, names)), mesh_shape=shape, placements=placements)


class _Collection:
    """The state of one collection: live parameters first, then every leaf of the optimizers."""

    def __init__(self, tables: OwnershipTables, optimizer: Any) -> None:
        self.tables = tables
        self.optimizer = optimizer
        self.specs = SpecTable()
        self.parameters: list[LiveParameter] = []
        self.by_identity: dict[int, int] = {}
        self.mains: dict[int, int] = {}
        self.optimizers: list[OptimizerInstance] = []
        self.groups: list[ParameterGroup] = []
        self.held: list[HeldTensor] = []
        self.orphans: list[OrphanState] = []
        self.unread: list[str] = []
        self.kept: list[Any] = []

    def facts(self) -> OptimizerFacts:
        for live_parameter in live_parameters(self.tables):
            self.add_parameter(live_parameter)
        for leaf in leaves(self.optimizer):
            self.add_leaf(leaf)
        return OptimizerFacts(
            optimizers=tuple(self.optimizers),
            groups=tuple(self.groups),
            specs=tuple(self.specs.specs),
            parameters=tuple(self.parameters),
            held=tuple(self.held),
            unread=tuple(self.unread),
            orphans=tuple(self.orphans),
        )

    def add_parameter(self, live: LiveTensor) -> None:
        tensor, spec = live.tensor, self.specs.add(live.tensor)
        layout = self.tables.layouts[live.records[0].layout] if live.records else None
        main = next((candidate for name in MAIN if is_tensor(candidate := first(tensor, name))), None)
        if main is not None:
            self.kept.append(main)
            self.mains[id(main)] = len(self.parameters)
        self.by_identity[live.identity] = len(self.parameters)
        self.parameters.append(
            LiveParameter(
                identity=live.identity,
                fqn=live.names[0],
                aliases=live.names,
                spec=spec,
                global_shape=self.specs.specs[spec].shape if layout is None else layout.global_shape,
                requires_grad=bool(read(tensor, "requires_grad", True)),
                owner=live.records[0].owner if live.records else "",
                flat=layout is None or layout.flat is not None,
                main=None if main is None else self.specs.add(main),
                main_gradient=self.first_of((tensor, *MAIN_GRADIENT), (main, "grad")),
                has_gradient=_has_gradient(tensor),
                zero_gradient=_is_zero(tensor)
                if _has_gradient(tensor) and not read(tensor, "requires_grad")
                else False,
            )
        )

    def first_of(self, *places: tuple[Any, ...]) -> int | None:
        """The spec of the first tensor among the named attributes of `places`: (object, names)."""
        for holder, *names in places:
            for name in names:
                value = first(holder, name)
                if is_tensor(value):
                    return self.specs.add(value)
        return None

    def add_leaf(self, leaf: Leaf) -> None:
        groups = groups_of(leaf.optimizer)
        if groups is None:
            self.unread.append(f"{leaf.name} ({qualified(type(leaf.optimizer))}) has no parameter groups")
            return
        index = len(self.optimizers)
        self.optimizers.append(
            OptimizerInstance(
                name=leaf.name,
                qualified_type=qualified(type(leaf.optimizer)),
                wrappers=tuple(qualified(type(outer)) for outer in leaf.wrappers),
                partitioned=leaf.partitioned,
                settings=_settings(leaf.optimizer),
            )
        )
        for wrapper in (*leaf.wrappers, leaf.optimizer):
            self.add_main_pairs(wrapper)
        states = [state for holder in (leaf.optimizer, read(leaf.optimizer, "optim")) for state in _states(holder)]
        for position, group in enumerate(groups):
            self.add_group(index, position, group, states)
        self.add_orphans(index, groups, states)

    def add_orphans(self, optimizer: int, groups: list[Mapping[str, Any]], states: list[Any]) -> None:
        """State that is keyed by tensors of no group; what is keyed by something else nobody can tell."""
        held = {id(tensor) for group in groups for tensor in tensors_of(group)}
        for key, entry in [pair for state in states for pair in state.items()]:
            if is_tensor(key) and id(key) not in held and entry:
                spec, index = self.specs.add(key), self.index_of(key)
                self.orphans.append(OrphanState(optimizer=optimizer, spec=spec, parameter=index))

    def add_main_pairs(self, wrapper: Any) -> None:
        for models, mains in MAIN_PAIRS:
            for model, main in zip(_flattened(read(wrapper, models)), _flattened(read(wrapper, mains)), strict=False):
                index = self.index_of(model)
                if index is not None:
                    self.kept.append(main)
                    self.mains.setdefault(id(main), index)
                    if self.parameters[index].main is None:
                        changed = evolve(self.parameters[index], main=self.specs.add(main))
                        self.parameters[index] = changed

    def index_of(self, tensor: Any) -> int | None:
        return self.by_identity.get(self.tables.identity(tensor))

    def add_group(self, optimizer: int, position: int, group: Mapping[str, Any], states: list[Any]) -> None:
        tensors = tensors_of(group)
        names = group.get("param_names")
        names = names if isinstance(names, (list, tuple)) and len(names) == len(tensors) else [""] * len(tensors)
        name = next((group[key] for key in ("name", "group_name") if isinstance(group.get(key), str)), "")
        number = len(self.groups)
        self.groups.append(
            ParameterGroup(
                optimizer=optimizer,
                position=position,
                name=encodable(name) or f"group {position}",
                size=len(tensors),
                options=_options(group),
            )
        )
        for place, (tensor, called) in enumerate(zip(tensors, names, strict=True)):
            if not is_tensor(tensor):
                self.unread.append(f"{self.optimizers[optimizer].name} holds a {type(tensor).__name__}, no tensor")
                continue
            self.held.append(self.held_tensor(tensor, number, place, str(called), states))

    def held_tensor(self, tensor: Any, group: int, position: int, name: str, states: list[Any]) -> HeldTensor:
        main = self.mains.get(id(tensor))
        index = self.index_of(tensor)
        whole = self.tables.stand_ins.get(id(tensor))
        state = next((entry for mapping in states if (entry := _entry(mapping, tensor))), {})
        shapes = {str(key): self.specs.add(value) for key, value in state.items() if _has_dimensions(value)}
        return HeldTensor(
            identity=self.tables.identity(tensor),
            group=group,
            position=position,
            spec=self.specs.add(tensor),
            parameter=index if index is not None else main,
            main=index is None and main is not None,
            full_copy_of=None if whole is None or index is not None else self.by_identity.get(whole),
            name=encodable(name),
            requires_grad=bool(tensor.requires_grad),
            has_state=bool(state),
            state=FrozenDict(shapes) if shapes else EMPTY,
        )


def _has_gradient(tensor: Any) -> bool:
    # The gradient of a tensor that is not a leaf warns when it is read.
    return bool(read(tensor, "is_leaf", False)) and read(tensor, "grad") is not None


def _is_zero(tensor: Any) -> bool | Unknown:
    gradient = read(tensor.grad, "_local_tensor", tensor.grad)
    try:
        return not bool((gradient != 0).any())
    except Exception:  # meta, sparse, and classes that run their own code
        return Unknown(f"the gradient, a {type(gradient).__name__}, is not read")


def _settings(optimizer: Any) -> FrozenDict:
    """The optimizer's own switches and numbers, those with public names."""
    values = read(optimizer, "__dict__", {})
    plain_ones = {
        name: value
        for name, value in values.items()
        if isinstance(name, str) and name[:1] != "_" and type(value) in (bool, int, float, str)
    }
    return FrozenDict(plain_ones) if plain_ones else EMPTY


def _has_dimensions(value: Any) -> bool:
    return is_tensor(value) and bool(ints(value.shape))


def _states(holder: Any) -> Iterator[Mapping[Any, Any]]:
    state = read(holder, "state")
    if isinstance(state, Mapping):
        yield state


def _entry(state: Mapping[Any, Any], tensor: Any) -> Mapping[Any, Any]:
    """The state of the tensor. By `get`: indexing a `defaultdict` would create what is not there."""
    try:
        entry = state.get(tensor)
    except Exception:  # states keyed by something else
        return {}
    return entry if isinstance(entry, Mapping) else {}


def _flattened(groups: Any) -> list[Any]:
    if not isinstance(groups, (list, tuple)):
        return []
    return [parameter for group in groups for parameter in (group if isinstance(group, (list, tuple)) else [group])]


def _options(group: Mapping[str, Any]) -> FrozenDict:
    options = {}
    for key, value in group.items():
        if key not in _NOT_OPTIONS:
            options[str(key)] = _number(value) if is_tensor(value) else plain(value)
    return FrozenDict(options)


def _number(value: Any) -> float | str:
    """A hyperparameter held as a tensor of one element; a text when it is not such a number."""
    try:
        return float(value) if not value.is_meta and value.numel() == 1 else f"<{type(value).__name__}>"
    except Exception:  # tensor classes run their own code
        return f"<{type(value).__name__}>"
