"""Notice what trains outside the module tree: parameters in plain containers, and modules that a forward calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, field

from ..collect.hidden import hidden_places
from ..introspect.attributes import qualified
from ..introspect.wrappers import registry
from .hooks import HookSet
from .recorder import Recorder
from .units import Tree


@define
class OutsideTree:
    """The names of hidden parameters that got a gradient, and the classes of modules that were called."""

    gradients: dict[str, None] = field(factory=dict)
    called: dict[str, None] = field(factory=dict)


def watch_outside(tree: Tree, recorder: Recorder, hooks: HookSet) -> OutsideTree:
    """Follow what is outside the tree until the hooks are removed."""
    outside = OutsideTree()
    known: set[int] = set()
    for place in hidden_places(tree.walk):
        known |= {id(member) for member in place.members}
        for name, parameter in place.parameters.items():
            if parameter.requires_grad and parameter.is_leaf:
                hook = parameter.register_post_accumulate_grad_hook(_noted(outside, name))
                hooks.add(hook.remove)
    _watch_calls(tree, recorder, hooks, outside, known)
    return outside


def _noted(outside: OutsideTree, name: str) -> Callable[[Any], None]:
    def noted(_: Any) -> None:
        outside.gradients[name] = None

    return noted


def _watch_calls(tree: Tree, recorder: Recorder, hooks: HookSet, outside: OutsideTree, known: set[int]) -> None:
    """
    Note modules that a forward of the model calls, that are in no place known, and that hold parameters of their own.

    Losses and other models that the loop calls around the model's forward are not meant.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    if tree.opaque:
        return  # a hook on all modules would be compiled in, or compile again
    seen: set[int] = set()

    def called(module: Any, _: Any) -> None:
        if not recorder.in_forward or id(module) in seen or not torch.is_grad_enabled():
            return
        seen.add(id(module))
        if id(module) in known or tree.walk.find_module(module) is not None:
            return
        tensors = registry(module, "_parameters").values()
        if any(
            tensor is not None and tensor.requires_grad and tree.walk.find_tensor(tensor) is None for tensor in tensors
        ):
            outside.called[qualified(type(module))] = None

    hooks.add(register_module_forward_pre_hook(called).remove)
