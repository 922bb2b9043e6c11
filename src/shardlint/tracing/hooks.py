"""Put hooks on the units of a model, and take them away again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..collect.sharding.fsdp2 import state_of
from ..collect.sharding.groups import has_base
from ..introspect.versioned import UNKNOWN, first
from ..introspect.walk import Walk
from ..introspect.wrappers import registry
from .recorder import Recorder, graph_task
from .units import LiveUnit, Tree


class HookSet:
    """Everything that a trace changes about live objects, and how to undo it, the last change first."""

    def __init__(self, tree: Tree, recorder: Recorder) -> None:
        self.tree = tree
        self.recorder = recorder
        self.unobserved: dict[str, str] = {}
        self.unwatched: set[int] = set()
        self.backward_targets: set[int] = set()
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        """Undo every change."""
        while self._undo:
            self._undo.pop()()

    def add(self, undo: Callable[[], None]) -> None:
        """Remember how to undo something."""
        self._undo.append(undo)

    def watch_root(self) -> None:
        """Tell micro-steps apart by the forwards of the root, and write down which arguments it was given."""
        root = self.tree.walk.root
        names = _argument_names(root)
        registries = _registries(self.tree.walk)

        def before(_: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            import torch

            fields = _fields(names, args, kwargs)
            self.recorder.root_forward(fields, torch.is_grad_enabled(), any(map(_stands_in, registries)))
            self.recorder.root_depth += 1

        def after(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            self.recorder.root_depth = max(0, self.recorder.root_depth - 1)

        self._around(root, before, after)

    def note_targets(self, units: list[LiveUnit]) -> None:
        """Remember which modules some unit names as prefetch targets in backward, by id."""
        lists = (unit.prefetch("backward") for unit in units if unit.prefetch is not None)
        self.backward_targets = {id(module) for targets in lists for module in targets}

    def watch_unit(self, unit: LiveUnit) -> None:
        """Follow the forward of the unit's modules, and the modules inside that hold its parameters."""
        hidden = [module for module in unit.modules if id(module) in self.tree.opaque]
        if hidden:
            self.unobserved[unit.name] = "it is inside a compiled module"
            self.unwatched.update(unit.holders)
            return
        for module in unit.modules:
            self._watch_forward(unit, module)
            self._watch_registered_methods(unit, module)
        for group in unit.groups:
            self._watch_gather(unit, group)
            if _tells_state(group):
                self._watch_discard(unit, group)

    def _watch_forward(self, unit: LiveUnit, module: Any) -> None:
        recorder, name = self.recorder, unit.name

        def before(_: Any, args: Any, kwargs: Any) -> None:
            recorder.enter(name)

        def after(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            recorder.leave(name, output)

        self._around(module, before, after)

    def _watch_registered_methods(self, unit: LiveUnit, module: Any) -> None:
        """
        Methods that FSDP2 was told to treat as forwards call its state before and after; the module's hooks do not run.
        """
        state = state_of(module)
        before, after = first(state, "_pre_forward"), first(state, "_post_forward")
        if state is None or not (callable(before) and callable(after)) or not hasattr(state, "__dict__"):
            return
        if {"_pre_forward", "_post_forward"} & vars(state).keys():
            return
        recorder, name = self.recorder, unit.name

        def pre_forward(*args: Any, **kwargs: Any) -> Any:
            recorder.enter(name)
            return before(*args, **kwargs)

        def post_forward(called: Any, given: Any, output: Any) -> Any:
            result = after(called, given, output)
            recorder.leave(name, result)
            return result

        state._pre_forward, state._post_forward = pre_forward, post_forward
        self.add(lambda: delattr(state, "_pre_forward"))
        self.add(lambda: delattr(state, "_post_forward"))

    def _around(self, module: Any, before: Callable[..., None], after: Callable[..., None] | None) -> None:
        """Call `before` and `after` around the module's call: outside of compilation when it is compiled."""
        if vars(module).get("_compiled_call_impl") is not None:
            self._around_compiled(module, before, after)
            return
        place = self.tree.outermost(module)
        self.add(place.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove)
        if after is not None:
            self.add(place.register_forward_hook(after, with_kwargs=True, always_call=True).remove)

    def _around_compiled(self, module: Any, before: Callable[..., None], after: Callable[..., None] | None) -> None:
        inner = module._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            before(module, args, kwargs)
            output = None
            try:
                output = inner(*args, **kwargs)
            finally:
                if after is not None:
                    after(module, args, kwargs, output)
            return output

        module._compiled_call_impl = call
        self.add(lambda: setattr(module, "_compiled_call_impl", inner))

    def watch_holders(self, units: list[LiveUnit]) -> None:
        """Follow the modules that hold parameters: they tell recomputation, and what ran past its unit."""
        holders: dict[int, tuple[Any, list[LiveUnit]]] = {}
        for unit in units:
            if unit.name not in self.unobserved:
                for number, module in unit.holders.items():
                    holders.setdefault(number, (module, []))[1].append(unit)
        for number, (module, owners) in holders.items():
            compiled = vars(module).get("_compiled_call_impl") is not None or self.tree.outermost(module) is not module
            if compiled and any(module in unit.modules for unit in owners):
                self.unwatched.add(number)  # the unit's own hook stands outside of the compilation
            elif number in self.tree.opaque or compiled:
                self.unwatched.add(number)
            else:
                self._watch_holder(module, owners)

    def _watch_holder(self, module: Any, owners: list[LiveUnit]) -> None:
        recorder, number, name = self.recorder, id(module), self.tree.name(module)
        names = tuple(unit.name for unit in owners)
        # Without groups that tell their state there is nothing to look up while the step runs.
        groups = [(unit.name, group) for unit in owners for group in unit.groups if _tells_state(group)]

        seen = recorder.holder_hook(number, name, names)
        if not groups:
            self.add(module.register_forward_pre_hook(seen).remove)
            return

        def ran(_: Any, args: Any) -> None:
            seen(_, args)
            for unit, group in groups:
                if first(group, "is_unsharded") is False:
                    recorder.while_sharded.setdefault(unit, {})[name] = None

        self.add(module.register_forward_pre_hook(ran).remove)

    def _watch_gather(self, unit: LiveUnit, group: Any) -> None:
        inner = first(group, "unshard")
        values = vars(group) if hasattr(group, "__dict__") else {}
        if not callable(inner) or "unshard" in values or not _tells_state(group):
            return
        recorder, name = self.recorder, unit.name

        def unshard(*args: Any, **kwargs: Any) -> Any:
            if not first(group, "is_unsharded") and first(group, "_all_gather_result") is None:
                running = recorder.running
                demanded = running == name or (graph_task() != -1 and _last_backward(recorder) == name)
                recorder.event("unshard" if demanded else "prefetch", name, within=running)
                recorder.guessed[name] = not demanded and self._is_guess(unit, group)
            recorder.gathering += 1
            try:
                return inner(*args, **kwargs)
            finally:
                recorder.gathering -= 1

        group.unshard = unshard
        self.add(lambda: delattr(group, "unshard"))

    def _is_guess(self, unit: LiveUnit, group: Any) -> bool:
        """Whether FSDP2 chose by itself to gather the group now: ahead of its backward, and in nobody's list."""
        ahead = getattr(first(group, "_training_state"), "name", "") == "PRE_BACKWARD"
        return ahead and not any(id(module) in self.backward_targets for module in unit.modules)

    def _watch_discard(self, unit: LiveUnit, group: Any) -> None:
        """
        FSDP2 throws all-gathers away that nobody waited for, silently, when it finishes a backward: count them.

        Not those that it guessed by itself: ahead in backward it gathers what ran before in the forward, also frozen
        units, and what an evaluation or an earlier micro-step left in its list. Nobody asked for them.
        """
        inner = first(group, "finalize_backward")
        if not callable(inner) or not hasattr(group, "__dict__") or "finalize_backward" in vars(group):
            return
        recorder, name = self.recorder, unit.name

        def finalize_backward(*args: Any, **kwargs: Any) -> Any:
            if first(group, "_all_gather_result") is not None and not recorder.guessed.get(name):
                recorder.discarded[name] = recorder.discarded.get(name, 0) + 1
            return inner(*args, **kwargs)

        group.finalize_backward = finalize_backward
        self.add(lambda: delattr(group, "finalize_backward"))


def _last_backward(recorder: Recorder) -> str:
    return next((unit for kind, unit, _, _ in reversed(recorder.events) if kind == "backward"), "")


def _tells_state(group: Any) -> bool:
    return isinstance(first(group, "is_unsharded"), bool)


def _registries(walk: Walk) -> list[Mapping[str, Any]]:
    """The live registries in which something can only stand in for parameters when a caller put it there."""
    wrappers = [module.module for module in walk.modules if has_base(type(module.module), "FullyShardedDataParallel")]
    managed = {id(module) for wrapper in wrappers for module in wrapper.modules()}  # FSDP1 puts views of its own there
    modules = [module.module for module in walk.modules if id(module.module) not in managed]
    return [parameters for module in modules if (parameters := _parameters_of(module))]


def _parameters_of(module: Any) -> Mapping[str, Any]:
    """The live registry of the module's parameters, when all of them are such: sharding puts other tensors there."""
    import torch

    registered = registry(module, "_parameters")
    return registered if all(isinstance(value, torch.nn.Parameter) for value in registered.values()) else {}


def _stands_in(registered: Mapping[str, Any]) -> bool:
    """Whether something that is no parameter stands where parameters stood when the trace began."""
    import torch

    return any(not isinstance(value, torch.nn.Parameter) for value in registered.values() if value is not None)


def _argument_names(module: Any) -> list[str]:
    """The names of the positional arguments of the module's forward, empty when they cannot be read."""
    forward = first(module, "forward")
    try:
        parameters = inspect.signature(forward).parameters.values() if forward is not UNKNOWN else ()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in positional]


def _fields(names: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    given = [
        names[index] if index < len(names) else f"<{index}>"
        for index, argument in enumerate(args)
        if argument is not None
    ]
    return (*given, *(name for name, argument in kwargs.items() if argument is not None))
