"""
One pass over a module tree: every module and tensor by identity, with every name it has.

Names are dotted FQNs without the segments that wrappers add. A segment is a wrapper's only when the parent says so, by
its type or by leaving it out of its own names (`shardlint.introspect.wrappers`): a real child called `module` keeps its
name. Beside that nothing of the model is called but mapping methods of the registries in its `__dict__`, so overridden
`named_modules`, `__getattr__` and properties do not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import define, field

from ..names import natural_key
from .wrappers import may_wrap, wrapping

ALIAS_LIMIT = 1024
"""Names kept of one module; a module with more is listed in `Walk.cut`."""

REVISIT_LIMIT = 250_000
"""Visits beyond the first, over all modules: nested sharing multiplies names, and this bounds the product."""


class WalkedModule:
    """
    A module and its names, in the order in which the walk met them. `values` is the module's `__dict__`.

    `wrapper` is the kind of wrapper that it is, None when it is none; `wrapped` is what it wraps, None for nothing.
    """

    __slots__ = ("module", "names", "values", "wrapped", "wrapper")

    def __init__(self, module: Any, name: str, values: dict[str, Any]) -> None:
        self.module = module
        self.values = values
        self.names = [name]
        self.wrapper: str | None = None
        self.wrapped: Any = None

    @property
    def fqn(self) -> str:
        """The smallest name; numbers count as numbers."""
        return smallest(self.names)


class WalkedTensor:
    """
    A parameter or buffer and all its names. `kind` is `parameter` or `buffer`.

    `hidden` are those of its names under which it is registered as a non-persistent buffer.
    """

    __slots__ = ("hidden", "kind", "names", "tensor")

    def __init__(self, tensor: Any, kind: str, name: str) -> None:
        self.tensor = tensor
        self.kind = kind
        self.names = [name]
        self.hidden: tuple[str, ...] = ()

    @property
    def fqn(self) -> str:
        """The smallest name; numbers count as numbers."""
        return smallest(self.names)


@define(eq=False)
class Walk:
    """
    A model's modules and tensors by identity, in walk order (pre-order, first visit).

    The objects are referenced for as long as the walk lives, so that an `id()` taken from it stays theirs. `root` is
    the model below its outermost wrappers. `cut` names modules of which not every alias was followed, `cycles` the
    names at which a module contains itself.
    """

    model: Any
    root: Any
    modules: list[WalkedModule] = field(factory=list)
    tensors: list[WalkedTensor] = field(factory=list)
    cut: list[str] = field(factory=list)
    cycles: list[str] = field(factory=list)
    _modules_by_id: dict[int, WalkedModule] = field(factory=dict)
    _tensors_by_id: dict[int, WalkedTensor] = field(factory=dict)

    def find_module(self, module: Any) -> WalkedModule | None:
        """The record of `module`, None when it is not part of the tree."""
        return self._modules_by_id.get(id(module))

    def find_tensor(self, tensor: Any) -> WalkedTensor | None:
        """The record of `tensor`, None when no module of the tree registers it."""
        return self._tensors_by_id.get(id(tensor))

    @property
    def wrappers(self) -> Iterator[WalkedModule]:
        """The wrappers, which have the name of what they wrap."""
        return (module for module in self.modules if module.wrapper)


def smallest(names: list[str]) -> str:
    """The first of `names` in natural order."""
    return names[0] if len(names) == 1 else min(names, key=natural_key)


def text(key: Any) -> str:
    """A registry key as text that any JSON encoder takes."""
    name = key if isinstance(key, str) else str(key)
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode("utf-8")


def walk(model: Any) -> Walk:
    """Walk `model` once. Shared modules and tied tensors get all their names, within the limits of this module."""
    return _Walker(model).run()


class _Walker:
    """The state of one walk: an explicit stack, so that depth is not limited, and the path, so that cycles end."""

    def __init__(self, model: Any) -> None:
        self.walk = Walk(model=model, root=model)
        self.modules = self.walk._modules_by_id
        self.tensors = self.walk._tensors_by_id
        self.plain: set[type] = set()  # classes that are not wrappers
        self.path: set[int] = set()
        self.stack: list[tuple[WalkedModule, str, Iterator[tuple[Any, Any]]]] = []
        self.revisits = 0
        self.cut: dict[int, WalkedModule] = {}

    def run(self) -> Walk:
        self.enter(self.walk.model, "")
        stack = self.stack
        while stack:
            record, prefix, children = stack[-1]
            for key, child in children:
                if child is None:
                    continue
                if child is record.wrapped:
                    self.enter(child, prefix)
                else:
                    name = key if type(key) is str and key.isascii() else text(key)
                    self.enter(child, f"{prefix}.{name}" if prefix else name)
                if stack[-1][0] is not record:
                    break  # down into the child first; its parent goes on where it stopped
            else:
                stack.pop()
                self.path.discard(id(record.module))
        self.walk.modules = list(self.modules.values())
        self.walk.tensors = list(self.tensors.values())
        self.walk.cut = sorted((walked.fqn for walked in self.cut.values()), key=natural_key)
        self._unwrap_root()
        return self.walk

    def enter(self, module: Any, name: str) -> None:
        number = id(module)
        record = self.modules.get(number)
        if record is None:
            try:
                values = object.__getattribute__(module, "__dict__")
            except AttributeError:
                return  # what stands in the registry is not a module
            record = self.modules[number] = WalkedModule(module, name, values)
            if type(module) not in self.plain or values.get("_state_dict_hooks"):
                self._mark_wrapper(record)
        elif number in self.path:
            self.walk.cycles.append(name)
            return
        elif len(record.names) >= ALIAS_LIMIT or self.revisits >= REVISIT_LIMIT:
            self.cut[number] = record
            return
        else:
            self.revisits += 1
            record.names.append(name)
            values = record.values
        if tensors := values.get("_parameters"):
            self._add(tensors, "parameter", name, ())
        if tensors := values.get("_buffers"):
            self._add(tensors, "buffer", name, values.get("_non_persistent_buffers_set") or ())
        if children := values.get("_modules"):
            self.path.add(number)
            self.stack.append((record, name, iter(children.items())))

    def _mark_wrapper(self, record: WalkedModule) -> None:
        kind = type(record.module)
        found = wrapping(record.module)
        if found is not None:
            record.wrapper, record.wrapped = found
        elif not may_wrap(kind):
            self.plain.add(kind)

    def _add(self, items: Mapping[Any, Any], kind: str, prefix: str, hidden: Collection[Any]) -> None:
        tensors = self.tensors
        for key, tensor in items.items():
            if tensor is None:
                continue
            name = key if type(key) is str and key.isascii() else text(key)
            if prefix:
                name = f"{prefix}.{name}"
            record = tensors.get(id(tensor))  # alive: the walk holds every tensor that it has met
            if record is None:
                record = tensors[id(tensor)] = WalkedTensor(tensor, kind, name)
            else:
                record.names.append(name)
            if hidden and key in hidden:
                record.hidden = (*record.hidden, name)

    def _unwrap_root(self) -> None:
        record = self.walk.find_module(self.walk.model)
        while record is not None and record.wrapper and record.wrapped is not None:
            self.walk.root = record.wrapped
            record = self.walk.find_module(record.wrapped)
