"""
Tensors that a load left as memory: nothing stored gives them, and the initialiser of their model passes them over.

Transformers loads into memory that was only allocated. What the checkpoint does not hold is left to `_init_weights`,
which has no branch for every module. Whether it has one is tried on a copy that holds a sentinel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..facts import Facts
from ..introspect.attributes import read
from ..introspect.walk import Walk, WalkedModule, WalkedTensor
from ..introspect.wrappers import registry
from .blank_copy import NoCopyError, blank_copy, sentinel
from .derived import enclosing, initialising_models
from .invariants import random_states_kept

LARGEST = 2**26  # elements of a module that is tried


def uninitialised(walk: Walk, facts: Facts) -> tuple[str, ...]:
    """The names of the tensors that nobody wrote, as far as the load report, else the plan, calls them missing."""
    import torch

    missing = _missing(facts)
    if not missing:
        return ()
    candidates = [tensor for tensor in walk.tensors if not missing.isdisjoint(tensor.names) and _untouched(tensor)]
    if not candidates or not any(read(tensor.tensor, "_is_hf_initialized", False) for tensor in walk.tensors):
        return ()
    with torch.no_grad(), torch.device("cpu"), random_states_kept():
        passed_over = set(_passed_over(walk, candidates))
    return tuple(tensor.fqn for tensor in candidates if id(tensor.tensor) in passed_over)


def _missing(facts: Facts) -> set[str]:
    if facts.load is not None and facts.load.reported:
        return {*facts.load.missing, *(mismatched.key for mismatched in facts.load.mismatched)}
    if facts.plan is not None:
        return {tensor.name for tensor in facts.plan.tensors if tensor.status.startswith("missing")}
    return set()


def _untouched(tensor: WalkedTensor) -> bool:
    """Whether a plain floating tensor has not been written in place since it was made; sharding makes new ones."""
    floating = read(read(tensor.tensor, "dtype"), "is_floating_point", False)
    plain = type(tensor.tensor).__name__ in ("Parameter", "Tensor", "Buffer")
    return plain and bool(floating) and not read(tensor.tensor, "is_meta", True) and tensor.tensor._version == 0


def _passed_over(walk: Walk, candidates: list[WalkedTensor]) -> Iterator[int]:
    """The ids of the candidates that the initialiser of their model leaves as they are."""
    models, wanted = initialising_models(walk), {id(tensor.tensor) for tensor in candidates}
    for module in walk.modules:
        tensors = {**registry(module.module, "_parameters"), **registry(module.module, "_buffers")}
        names = [name for name, tensor in tensors.items() if id(tensor) in wanted]
        model = enclosing(models, module.fqn)
        if not names or model is None or sum(tensors[name].numel() for name in names) > LARGEST:
            continue
        written = _written(model, module)
        if written is not None and (left := [name for name in names if name not in written]):
            reached = _reached(model, module, walk)
            yield from (id(tensors[name]) for name in left if name not in reached)


def _reached(model: Any, module: WalkedModule, walk: Walk) -> set[Any]:
    """The names of the tensors of the module that the initialiser writes to from a module around it."""
    found: set[Any] = set()
    for outer in walk.modules:
        within = module.fqn.startswith(f"{outer.fqn}.") if outer.fqn else bool(module.fqn)
        if not within or not _inside(model, outer.module):
            continue
        try:
            copy = blank_copy(outer.module)
            inner = copy
            for segment in module.fqn.removeprefix(outer.fqn).strip(".").split("."):
                inner = inner._modules[segment]
            tensors = {**inner._parameters, **inner._buffers}
            before = {name: value._version for name, value in tensors.items() if value is not None}
            model._init_weights(copy)
        except (NoCopyError, Exception, SystemExit):
            return set(module.module._parameters) | set(module.module._buffers)
        tensors = {**inner._parameters, **inner._buffers}
        found |= {name for name, version in before.items() if tensors[name]._version != version}
    return found


def _inside(model: Any, module: Any) -> bool:
    return any(module is inner for inner in model.modules())


def _written(model: Any, module: WalkedModule) -> set[Any] | None:
    """The names of the tensors of the module that the initialiser writes to; None when it cannot be tried."""
    try:
        copy = blank_copy(module.module, parameters=True)
        model._init_weights(copy)
    except (NoCopyError, Exception, SystemExit):  # the initialiser is code of the model
        return None
    tensors = {**copy._parameters, **copy._buffers}
    return {name for name, value in tensors.items() if value is not None and not _blank(value)}


def _blank(value: Any) -> bool:
    """Whether a tensor holds nothing but the first sentinel."""
    import torch

    if not value.dtype.is_floating_point:
        return bool((value == sentinel(value.dtype, False)).all())
    return bool(torch.isnan(value).all())
