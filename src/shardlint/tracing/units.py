"""The units that a trace follows: those that something shards, else repeated blocks and what stands beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import define, field

from ..collect.sharding.fsdp2 import groups_of, state_of
from ..collect.sharding.groups import has_base
from ..introspect.versioned import UNKNOWN, first, known, listed
from ..introspect.walk import Walk
from ..introspect.wrappers import registry
from ..names import ROOT, joined, natural_key

MODULE = "module"
_CONTAINERS = ("ModuleList", "Sequential", "ModuleDict")


@define(eq=False)
class TracedParameter:
    """
    A parameter: its names, how to read the tensor that the optimizer sees, and the modules that register it.

    `record` is the framework's own record of it, which may hold gradients of its own.
    """

    names: tuple[str, ...]
    read: Callable[[], Any]
    holders: list[Any] = field(factory=list)
    record: Any = None

    @property
    def fqn(self) -> str:
        """The smallest name."""
        return min(self.names, key=natural_key)


@define(eq=False)
class LiveUnit:
    """
    A unit, its modules, its parameters, and the framework's groups and prefetch targets behind it.

    `holders` are the modules inside it that register its parameters.
    """

    name: str
    kind: str
    modules: tuple[Any, ...]
    module_names: tuple[str, ...]
    parameters: list[TracedParameter] = field(factory=list)
    holders: dict[int, Any] = field(factory=dict)
    groups: list[Any] = field(factory=list)
    prefetch: Callable[[str], list[Any]] | None = None


class Tree:
    """The module tree below the wrappers, with what is needed to place units in it. Made once for each trace."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.opaque = self._opaque()
        self._compiled = {id(module.wrapped): module.module for module in walk.modules if module.wrapper == "compile"}

    def name(self, module: Any) -> str:
        """The FQN of a module, `<root>` for the root."""
        walked = self.walk.find_module(module)
        return (walked.fqn or ROOT) if walked is not None else f"<untracked:{type(module).__name__}>"

    def below(self, module: Any) -> Iterator[Any]:
        """The module and everything below it, each once."""
        seen: set[int] = set()
        stack = [module]
        while stack:
            current = stack.pop()
            if current is None or id(current) in seen:
                continue
            seen.add(id(current))
            yield current
            stack.extend(reversed(list(registry(current, "_modules").values())))

    def _opaque(self) -> set[int]:
        """Modules strictly inside compiled ones: hooks of theirs are compiled in or ignored, so none are put there."""
        opaque: set[int] = set()
        for walked in self.walk.modules:
            if walked.wrapper == "compile":
                opaque.update(id(module) for module in self.below(walked.wrapped) if module is not walked.wrapped)
            elif walked.values.get("_compiled_call_impl") is not None:
                opaque.update(id(module) for module in self.below(walked.module) if module is not walked.module)
        return opaque

    def outermost(self, module: Any) -> Any:
        """The compile wrapper around a module, where its hooks run; the module itself without one."""
        return self._compiled.get(id(module), module)


def find_units(tree: Tree) -> list[LiveUnit]:
    """The units of the tree in walk order. Each trainable parameter belongs to one, shared ones to several."""
    units = [*_hyperparallel(tree), *_fsdp2(tree)]
    managed = {id(form) for unit in units for parameter in unit.parameters for form in _forms(parameter)}
    homes = {id(module): unit for unit in units for module in unit.modules}
    units += _plain(tree, managed, homes)
    return [unit for unit in units if unit.parameters or unit.groups]


def _forms(parameter: TracedParameter) -> list[Any]:
    """Every tensor that stands for the parameter: sharded, gathered."""
    values = vars(parameter.record) if hasattr(parameter.record, "__dict__") else {}
    return [parameter.read(), values.get("_unsharded_param"), values.get("_sharded_post_forward_param")]


def _fsdp2(tree: Tree) -> Iterator[LiveUnit]:
    states: dict[int, Any] = {}
    for walked in tree.walk.modules:
        state = state_of(walked.module)
        if state is not None:
            states.setdefault(id(state), (state, walked.module))
    names = {number: _joined_names(tree, state, module) for number, (state, module) in states.items()}
    for number, (state, module) in states.items():
        modules = tuple(listed(first(state, "_modules"))) or (module,)
        groups = groups_of(state)
        unit = LiveUnit(
            name=names[number],
            kind=_fsdp2_kind(groups),
            modules=modules,
            module_names=tuple(tree.name(member) for member in modules),
            groups=groups,
            prefetch=_prefetch_of(state),
        )
        for group in groups:
            unit.parameters.extend(_fsdp_parameter(tree, param) for param in listed(first(group, "fsdp_params")))
        unit.holders = {id(holder): holder for parameter in unit.parameters for holder in parameter.holders}
        yield unit


def _joined_names(tree: Tree, state: Any, module: Any) -> str:
    return "+".join(tree.name(member) for member in listed(first(state, "_modules")) or [module])


def _fsdp2_kind(groups: list[Any]) -> str:
    info = first(groups[0], "mesh_info") if groups else UNKNOWN
    if groups and first(info, "shard_mesh_size") is UNKNOWN:
        return "replicate"
    return "fsdp2" if first(info, "replicate_mesh_size") is UNKNOWN else "hsdp"


def _prefetch_of(state: Any) -> Callable[[str], list[Any]]:
    def targets(direction: str) -> list[Any]:
        states = listed(first(state, f"_states_to_{direction}_prefetch"))
        return [(listed(first(target, "_modules")) or [target])[0] for target in states]

    return targets


def _fsdp_parameter(tree: Tree, param: Any) -> TracedParameter:
    info = first(param, "_module_info")
    pairs = [(first(info, "module"), first(info, "param_name"))]
    pairs += zip(listed(first(info, "shared_modules")), listed(first(info, "shared_param_names")), strict=False)
    names = [joined(prefix, str(name)) for module, name in pairs for prefix in _names_of(tree, module)]
    holders = [module for module, _ in pairs]
    return TracedParameter(tuple(dict.fromkeys(names)), lambda: param.sharded_param, holders, param)


def _names_of(tree: Tree, module: Any) -> list[str]:
    walked = tree.walk.find_module(module)
    return walked.names if walked is not None else [f"<untracked:{type(module).__name__}>"]


def _hyperparallel(tree: Tree) -> Iterator[LiveUnit]:
    for module in tree.walk.modules:
        scheduler = module.values.get("hsdp_scheduler")
        if scheduler is None:
            scheduler = known(first(type(module.module), "hsdp_scheduler"))
        if scheduler is None:
            continue
        name = module.fqn or ROOT
        unit = LiveUnit(
            name=name,
            kind="hyperparallel",
            modules=(module.module,),
            module_names=(name,),
            prefetch=_cells_of(scheduler, module.module),
        )
        params = listed(first(first(scheduler, "hsdp_state"), "hsdp_params"))
        for index, param in enumerate(params):
            if first(param, "sharded_param") is UNKNOWN:
                continue
            told = first(param, "_param_fqn")
            fqn = told if isinstance(told, str) and told else f"{name}.param[{index}]"
            read = _reader(param)
            walked = tree.walk.find_tensor(read())
            unit.parameters.append(TracedParameter(tuple(walked.names) if walked else (fqn,), read, [], param))
        unit.groups = [first(scheduler, "hsdp_state")]
        yield unit


def _reader(param: Any) -> Callable[[], Any]:
    return lambda: param.sharded_param


def _cells_of(scheduler: Any, module: Any) -> Callable[[str], list[Any]]:
    def targets(direction: str) -> list[Any]:
        for holder in (scheduler, first(scheduler, "hsdp_state"), module):
            cells = first(holder, f"{direction}_prefetch_cells")
            if cells is not UNKNOWN:
                return listed(cells)
        return []

    return targets


def _plain(tree: Tree, managed: set[int], sharded: dict[int, LiveUnit]) -> list[LiveUnit]:
    """Units for the parameters that nothing above manages; what lies in a sharded unit's own module joins that."""
    homes: dict[int, list[Any]] = {}
    callers = _callers(tree)
    for walked_module in tree.walk.modules:
        for tensor in registry(walked_module.module, "_parameters").values():
            if tensor is not None:
                holder = callers.get(id(walked_module.module), walked_module.module)
                homes.setdefault(id(tensor), []).append(holder)
    places = _places(tree)
    units: dict[int, LiveUnit] = {}
    for walked in tree.walk.tensors:
        if walked.kind != "parameter" or id(walked.tensor) in managed:
            continue
        holders = homes.get(id(walked.tensor), [])
        parameter = TracedParameter(tuple(dict.fromkeys(walked.names)), _constant(walked.tensor), holders)
        for holder in holders:
            module = places.get(id(holder), holder)
            unit = sharded.get(id(module)) or units.get(id(module))
            if unit is None:
                unit = units[id(module)] = _plain_unit(tree, module)
            unit.holders[id(holder)] = holder
            if parameter not in unit.parameters:
                unit.parameters.append(parameter)
    return list(units.values())


def _constant(tensor: Any) -> Callable[[], Any]:
    return lambda: tensor


def _plain_unit(tree: Tree, module: Any) -> LiveUnit:
    name = tree.name(module)
    kind = "fsdp1" if has_base(type(module), "FullyShardedDataParallel") else MODULE
    return LiveUnit(name=name, kind=kind, modules=(module,), module_names=(name,))


def _places(tree: Tree) -> dict[int, Any]:
    """
    For each module the one that is its unit: the innermost FSDP1 wrapper, else the outermost of the repeated blocks
    above it, else the outermost module above it (the root aside) that holds parameters itself.
    """
    places: dict[int, Any] = {}
    root = tree.walk.root
    stack: list[tuple[Any, Any, Any]] = [(tree.walk.model, None, tree.walk.model)]
    seen: set[int] = set()
    while stack:
        module, unit, caller = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        caller = module if has_forward(module) else caller
        if has_base(type(module), "FullyShardedDataParallel"):
            unit = module
        own = [member for member in registry(module, "_parameters").values() if member is not None]
        if unit is None and own and module is not root and has_forward(module):
            unit = module
        places[id(module)] = unit if unit is not None else caller
        blocks = _blocks(module) if unit is None else set()
        for child in reversed([member for member in registry(module, "_modules").values() if member is not None]):
            stack.append((child, child if id(child) in blocks else unit, caller))
    return places


def has_forward(module: Any) -> bool:
    """Whether the module can be called: containers of parameters and of modules cannot, their owners use them."""
    import torch

    return getattr(type(module), "forward", None) is not torch.nn.Module.forward or "forward" in vars(module)


def _callers(tree: Tree) -> dict[int, Any]:
    """For each module without a forward of its own, the nearest module above it that has one."""
    callers: dict[int, Any] = {}
    stack: list[tuple[Any, Any]] = [(tree.walk.model, None)]
    seen: set[int] = set()
    while stack:
        module, caller = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if has_forward(module):
            caller = module
        elif caller is not None:
            callers[id(module)] = caller
        stack.extend((child, caller) for child in registry(module, "_modules").values() if child is not None)
    return callers


def _blocks(module: Any) -> set[int]:
    """The children of a list of modules, when it has several of one class: repeated blocks."""
    children = [submodule for submodule in registry(module, "_modules").values() if submodule is not None]
    if len(children) < 2 or not any(has_base(type(module), name) for name in _CONTAINERS):
        return set()
    kinds = [type(child) for child in children]
    return {id(child) for child in children if kinds.count(type(child)) > 1}


def parameters_of(units: Iterable[LiveUnit]) -> list[tuple[TracedParameter, tuple[str, ...]]]:
    """Every parameter once, with the names of the units that hold it."""
    parameters: dict[int, tuple[TracedParameter, list[str]]] = {}
    for unit in units:
        for parameter in unit.parameters:
            entry = parameters.setdefault(id(parameter.read()), (parameter, []))
            if unit.name not in entry[1]:
                entry[1].append(unit.name)
    return [(parameter, tuple(names)) for parameter, names in parameters.values()]
