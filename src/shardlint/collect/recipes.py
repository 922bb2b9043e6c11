"""
Buffers that the contract's recipes compute, compared with what the model holds.

A recipe is the owner's code. It runs without gradients and with every random state put back, and what it did to the
model's tensors all the same is told: a recipe that cannot be relied upon is a problem of the contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..analysis.contract_globs import matches_any
from ..boxes import PARTIAL, DimRanges, replay, shape_of
from ..contract import Recipe
from ..facts import ContractProblem, DerivedBuffer
from ..introspect.attributes import read
from ..introspect.importing import ImportProblem, import_object
from ..introspect.plain import encodable
from ..introspect.wrappers import registry
from ..names import ROOT
from .derived import BUDGET, LARGEST, difference, readable
from .invariants import random_states_kept
from .sharding.dtensor import is_dtensor, mesh_facts, mesh_of
from .sharding.placements import placement

if TYPE_CHECKING:
    from ..introspect.walk import Walk, WalkedTensor

_Held = tuple[DimRanges, ...] | None
_FAILED = "the contract's recipe failed (D102)"


class _RecipeProblemError(Exception):
    """What is wrong with a recipe or with what it returned."""


def compared_with_recipes(
    recipes: Sequence[Recipe], walk: Walk, derived: Iterable[DerivedBuffer]
) -> tuple[tuple[DerivedBuffer, ...], tuple[ContractProblem, ...]]:
    """
    Return `derived` with the buffers of the contract's recipes first, and the recipes that cannot be used.

    Every buffer with a recipe is in the result: one that could not be compared is unknown.
    """
    run = _Rebuilding(recipes, walk)
    declared = [run.compare(index, buffer) for index, buffer in _matched(recipes, walk)]
    others = (buffer for buffer in derived if buffer.fqn not in run.names)
    return (*declared, *others), tuple(run.problems())


def _matched(recipes: Sequence[Recipe], walk: Walk) -> Iterator[tuple[int, WalkedTensor]]:
    """The buffers with the place of the first recipe that is theirs."""
    for tensor in walk.tensors:
        if tensor.kind == "buffer":
            first = (index for index, recipe in enumerate(recipes) if matches_any(recipe.buffer, tensor.names))
            yield from ((index, tensor) for index in [next(first, -1)] if index >= 0)


class _Rebuilding:
    """The recipes of one collection: what was imported, what failed, and the names that were dealt with."""

    def __init__(self, recipes: Sequence[Recipe], walk: Walk) -> None:
        self.recipes = recipes
        self.walk = walk
        self.budget = BUDGET
        self.names: set[str] = set()
        self.states: dict[str, tuple[Any, ...]] = {}
        self.failed: dict[tuple[int, str], list[str]] = {}

    def compare(self, index: int, buffer: WalkedTensor) -> DerivedBuffer:
        """Compute one buffer and compare it."""
        self.names.update(buffer.names)
        recipe = f"contract recipe {_shown(self.recipes[index].recipe)}"
        local, region = _held(buffer.tensor)
        reason = self.unreadable(local)
        if not reason:
            try:
                status, error, detail = self.outcome(index, buffer, local, region)
            except _RecipeProblemError as problem:
                self.failed.setdefault((index, str(problem)), []).append(buffer.fqn)
                reason = _FAILED
            except Exception as failure:  # tensors of other layouts and backends
                reason = encodable(f"comparing it raised {type(failure).__name__}: {failure}")[:300]
        if reason:
            status, error, detail = "unknown", None, reason
        return DerivedBuffer(fqn=buffer.fqn, recipe=recipe, status=status, error=error, detail=detail, declared=True)

    def unreadable(self, buffer: Any) -> str:
        """Why a buffer cannot be compared; empty when it can. Counts its elements."""
        if not readable(buffer):
            if read(buffer, "is_meta", False):
                return "it is on the meta device"
            return f"it is not a plain real tensor of 1 to {LARGEST} elements"
        self.budget -= buffer.numel()
        return "" if self.budget >= 0 else "too many elements in all buffers with recipes together"

    def outcome(self, index: int, buffer: WalkedTensor, local: Any, region: _Held) -> tuple[str, float | None, str]:
        """Compare what the buffer held before the recipe ran with what the recipe returned: this rank's part of it."""
        import torch

        function = _function(self.recipes[index].recipe)
        with torch.no_grad():
            before = local.detach().clone()
            states = self.states or self.seen()
            try:
                with random_states_kept():
                    value = function(self.walk.root, buffer.fqn)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit, and the private ones of torch, pytest, asyncio
                raise _RecipeProblemError(f"it raised {type(error).__name__}: {error}") from None
            self.states = self.seen()
            changed = [name for name, state in self.states.items() if states.get(name) != state]
            if changed:
                raise _RecipeProblemError(f"it must not change the model, but changed {', '.join(changed[:3])}")
            return difference(before, _part(_usable(value, buffer.tensor, local), region))

    def seen(self) -> dict[str, tuple[Any, ...]]:
        """What changes when a tensor of the model or its gradient is written, or another one is put in its place."""
        tensors = {tensor.fqn: _state(tensor.tensor) for tensor in self.walk.tensors}
        return tensors | {module.fqn or ROOT: _registered(module.module) for module in self.walk.modules}

    def problems(self) -> Iterator[ContractProblem]:
        """Each failure once, with the first buffer and the number of others."""
        for (index, error), names in self.failed.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield ContractProblem(where=f"recipes[{index}].recipe", error=encodable(f"for {names[0]}{more}: {error}"))


def _state(tensor: Any) -> tuple[Any, ...]:
    # The gradient of a tensor that is not a leaf warns when it is read.
    gradient = read(tensor, "grad") if read(tensor, "is_leaf", False) else None
    return (
        read(tensor, "_version"),
        read(tensor, "requires_grad"),
        None if gradient is None else (id(gradient), read(gradient, "_version")),
    )


def _registered(module: Any) -> tuple[Any, ...]:
    tables = ("_parameters", "_buffers", "_modules")
    entries = tuple((key, id(value)) for table in tables for key, value in registry(module, table).items())
    return (read(module, "training"), *entries)


def _function(recipe: Any) -> Any:
    if callable(recipe):
        return recipe
    try:
        function = import_object(recipe)
    except ImportProblem as problem:
        raise _RecipeProblemError(str(problem)) from None
    if not callable(function):
        raise _RecipeProblemError(f"{recipe}: expected a callable, got {type(function).__name__}")
    return function


def _shown(recipe: Any) -> str:
    return recipe if isinstance(recipe, str) else encodable(str(read(recipe, "__qualname__", type(recipe).__name__)))


def _held(buffer: Any) -> tuple[Any, _Held]:
    """
    What this rank holds of a buffer, and the index ranges of each dim that it holds: None for all of them.

    A distributed buffer is returned as it is when what is here of it cannot be told; it is then not readable.
    """
    if not is_dtensor(buffer):
        return buffer, None
    mesh, placements = mesh_facts(mesh_of(buffer)), [placement(mark) for mark in buffer.placements]
    local = read(buffer, "_local_tensor", buffer)
    if mesh.coordinate is None or any(mark.kind == PARTIAL for mark in placements):
        return buffer, None
    try:
        region = replay(tuple(buffer.shape), mesh.shape, mesh.coordinate, placements)
    except ValueError:
        return buffer, None
    return (local, region) if shape_of(region) == tuple(local.shape) else (buffer, None)


def _part(value: Any, region: _Held) -> Any:
    """This rank's part of a whole tensor."""
    import torch

    for dim, ranges in enumerate(region or ()):
        kept = [index for start, length in ranges for index in range(start, start + length)]
        value = value.index_select(dim, torch.tensor(kept, dtype=torch.int64))
    return value


def _usable(value: Any, live: Any, local: Any) -> Any:
    """What the recipe returned, on the CPU. Raises `_RecipeProblemError` when a buffer cannot be compared with it."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise _RecipeProblemError(f"expected a tensor, got {type(value).__name__}")
    if value.shape != live.shape:
        raise _RecipeProblemError(f"expected the shape {list(live.shape)}, got {list(value.shape)}")
    plain = value.detach()
    if not readable(plain) or plain.layout is not torch.strided or bool(torch.isnan(plain).any()):
        raise _RecipeProblemError("expected a plain real tensor with values, none of them NaN")
    if plain.is_complex() != live.is_complex():
        raise _RecipeProblemError(f"expected the kind of numbers of the buffer ({live.dtype}), got {plain.dtype}")
    if plain.dtype.is_floating_point and not (live.dtype.is_floating_point or live.is_complex()):
        raise _RecipeProblemError(
            f"expected integers or truth values as in the buffer ({live.dtype}), got {plain.dtype}"
        )
    if plain.untyped_storage().data_ptr() == local.untyped_storage().data_ptr():
        raise _RecipeProblemError("expected a new tensor, got the memory of the buffer itself")
    return plain.cpu()
