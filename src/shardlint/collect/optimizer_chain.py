"""Optimizers inside wrappers, lists and chains: find those that have the parameter groups. Nothing here raises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from ..introspect.attributes import read

_SEVERAL = ("chained_optimizers", "optimizers", "_optimizers")
_INNER = ("optimizer", "_optimizer", "base_optimizer", "inner_optimizer")
_DEPTH = 12

# Classes whose groups hold flat parts of many parameters at once, by name: none of these packages is imported.
_PARTITIONED = (
    "DistributedOptimizer",
    "DeepSpeedZeroOptimizer",
    "DeepSpeedZeroOptimizer_Stage3",
    "DeepSpeedOptimizer",
    "BF16_Optimizer",
    "LowLevelZeroOptimizer",
    "GeminiOptimizer",
)

MAIN_PAIRS = (
    ("float16_groups", "fp32_from_float16_groups"),
    ("fp16_groups", "fp32_from_fp16_groups"),
    ("bf16_groups", "fp32_groups"),
)
"""Attributes of wrappers: groups of model parameters, and in the same order groups of their main copies."""


@frozen
class Leaf:
    """An optimizer with parameter groups, how it was reached, and the objects around it, outermost first."""

    name: str
    optimizer: Any
    wrappers: tuple[Any, ...] = ()

    @property
    def partitioned(self) -> str:
        """Why its tensors are not parameters one by one; empty when they are."""
        for candidate in (*self.wrappers, self.optimizer):
            for base in type(candidate).__mro__:
                if base.__name__ in _PARTITIONED:
                    return f"a {base.__name__} holds flat parts of many parameters"
        return ""


def leaves(optimizer: Any, name: str = "optimizer") -> Iterator[Leaf]:
    """
    Every optimizer inside `optimizer`: sequences, mappings, `.optimizer`, `.chained_optimizers`, `.optimizers`.

    What has no parameter groups is yielded too; it is for the caller to say that it could not be read.
    """
    yield from _leaves(optimizer, name, (), set())


def _leaves(candidate: Any, name: str, around: tuple[Any, ...], seen: set[int]) -> Iterator[Leaf]:
    if candidate is None or id(candidate) in seen or len(around) > _DEPTH:
        return
    seen.add(id(candidate))
    if isinstance(candidate, Mapping):
        candidate = list(candidate.values())
    if isinstance(candidate, (list, tuple, set, frozenset)):
        for index, child in enumerate(candidate):
            yield from _leaves(child, f"{name}[{index}]", around, seen)
        return
    for attribute in _SEVERAL:
        children = read(candidate, attribute)
        children = list(children.values()) if isinstance(children, Mapping) else children
        if isinstance(children, (list, tuple)) and children:
            for index, child in enumerate(children):
                yield from _leaves(child, f"{name}.{attribute}[{index}]", (*around, candidate), seen)
            return
    for attribute in _INNER:
        child = read(candidate, attribute)
        if child is not None and child is not candidate and _is_optimizer(child):
            yield from _leaves(child, f"{name}.{attribute}", (*around, candidate), seen)
            return
    yield Leaf(name, candidate, around)


def _is_optimizer(candidate: Any) -> bool:
    return groups_of(candidate) is not None or any(read(candidate, name) is not None for name in (*_SEVERAL, *_INNER))


def groups_of(optimizer: Any) -> list[Mapping[str, Any]] | None:
    """The parameter groups, None when there are none to be read."""
    groups = read(optimizer, "param_groups")
    if not isinstance(groups, (list, tuple)):
        return None
    return [group for group in groups if isinstance(group, Mapping) and "params" in group]


def tensors_of(group: Mapping[str, Any]) -> list[Any]:
    """The tensors of a parameter group."""
    params = group.get("params")
    return list(params) if isinstance(params, (list, tuple)) else [] if params is None else [params]


def held_ids(optimizer: Any) -> set[int]:
    """The ids of all tensors in all groups of all optimizers inside."""
    groups = (group for leaf in leaves(optimizer) for group in groups_of(leaf.optimizer) or ())
    return {id(tensor) for group in groups for tensor in tensors_of(group)}
