"""Modules and parameters that a module keeps in a plain container, where PyTorch registers none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import define, field

from ..facts import HiddenFacts
from ..introspect.attributes import qualified
from ..introspect.versioned import first, listed
from ..introspect.walk import Walk, text, walk
from ..introspect.wrappers import registry
from ..names import joined

MEMBER_LIMIT = 10_000
"""Members of one attribute that are looked at."""
_DEPTH = 3
_REGISTRIES = frozenset({"_modules", "_parameters", "_buffers"})


@define(eq=False)
class HiddenPlace:
    """An attribute that hides modules or parameters: its name, what it holds, and the tensors behind it by name."""

    name: str
    members: list[Any] = field(factory=list)
    parameters: dict[str, Any] = field(factory=dict)


def hidden_facts(walked: Walk) -> tuple[HiddenFacts, ...]:
    """The hidden places of the walked model as facts."""
    return tuple(
        HiddenFacts(
            name=place.name,
            types=tuple(dict.fromkeys(qualified(type(member)) for member in place.members)),
            members=len(place.members),
            parameters=len(place.parameters),
            trainable=tuple(name for name, tensor in place.parameters.items() if tensor.requires_grad),
            with_gradient=tuple(name for name, tensor in place.parameters.items() if tensor.grad is not None),
        )
        for place in hidden_places(walked)
    )


def hidden_places(walked: Walk) -> list[HiddenPlace]:
    """Every attribute of a module of the tree that holds parameters which no module of the tree registers."""
    import torch

    places = []
    for module in walked.modules:
        if module.wrapper is not None:
            continue  # what shards keeps its flat parameters in lists of its own
        for name, value in list(module.values.items()):
            if name in _REGISTRIES or not isinstance(value, (list, tuple, dict, set)) or not value:
                continue
            place = HiddenPlace(joined(module.fqn, text(name)))
            for key, member in _members(value, torch, _DEPTH):
                _add(place, key, member, walked, torch)
            if place.parameters:
                places.append(place)
    return places


def _members(value: Any, torch: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The modules and parameters in a container and the containers in it, with where they stand."""
    pairs: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value)
    for number, (key, member) in enumerate(pairs):
        if number >= MEMBER_LIMIT:
            return
        if isinstance(member, (torch.nn.Module, torch.nn.Parameter)):
            yield text(key), member
        elif depth > 1 and isinstance(member, (list, tuple, dict, set)):
            for inner, found in _members(member, torch, depth - 1):
                yield f"{text(key)}.{inner}", found


def _add(place: HiddenPlace, key: str, member: Any, walked: Walk, torch: Any) -> None:
    """Take the member in when it brings a parameter that the tree does not have."""
    if isinstance(member, torch.nn.Parameter):
        tensors = {key: member}
    elif walked.find_module(member) is not None or not (
        registry(member, "_modules") or registry(member, "_parameters")
    ):
        return
    else:
        inside = walk(member)
        tensors = {joined(key, tensor.fqn): tensor.tensor for tensor in inside.tensors if tensor.kind == "parameter"}
    new = {
        name: tensor
        for name, tensor in tensors.items()
        if walked.find_tensor(tensor) is None and not _stands_for_others(tensor, walked)
    }
    if new:
        place.members.append(member)
        place.parameters.update({joined(place.name, name): tensor for name, tensor in new.items()})


def _stands_for_others(tensor: Any, walked: Walk) -> bool:
    """Whether the parameter is FSDP1's one storage of parameters that modules of the tree have as their own."""
    infos = listed(first(tensor, "_param_infos"))
    return bool(infos) and all(walked.find_module(info[1]) is not None for info in infos)
