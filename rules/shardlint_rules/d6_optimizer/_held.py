"""What the rules of this phase share: the section, and which live parameter a tensor of the optimizer once was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from attrs import frozen

from shardlint.analysis.wrapper_names import without_wrappers
from shardlint.facts import HeldTensor, LiveParameter, OptimizerFacts


@frozen
class Counterpart:
    """The live parameter that a stale tensor once was, and how that is known: by name, by shape and order, by shape."""

    parameter: LiveParameter
    by: str


def partitioned(optimizer: OptimizerFacts) -> list[str]:
    """Why some optimizers cannot be matched with parameters one by one, and what could not be read at all."""
    reasons = [f"{instance.name}: {instance.partitioned}" for instance in optimizer.optimizers if instance.partitioned]
    return [*reasons, *optimizer.unread]


def where(optimizer: OptimizerFacts, tensor: HeldTensor) -> str:
    """`optimizer, group 1, position 3`, with the group's name when it has one."""
    return f"{optimizer.optimizer_of(tensor).name}, {group_text(optimizer, tensor)}, position {tensor.position}"


def group_text(optimizer: OptimizerFacts, tensor: HeldTensor) -> str:
    """`group 1`, or `group 1 (no-decay)`."""
    group = optimizer.group_of(tensor)
    number = f"group {group.position}"
    return number if group.name == number else f"{number} ({group.name})"


def stale(optimizer: OptimizerFacts) -> Iterator[HeldTensor]:
    """Held tensors that are not live parameters; emptied ones and flat parts of many parameters are left out."""
    seen: set[int] = set()
    for tensor in optimizer.held:
        spec = optimizer.specs[tensor.spec]
        if tensor.parameter is not None or optimizer.optimizer_of(tensor).partitioned or tensor.identity in seen:
            continue
        if prod(spec.shape):
            seen.add(tensor.identity)
            yield tensor


def counterparts(optimizer: OptimizerFacts) -> dict[int, Counterpart]:
    """For stale tensors, by identity: the live parameter that each once was, as far as names, shapes or order tell."""
    return _Matching(optimizer).run()


_Key = Callable[[tuple[int, ...]], object]
_WAYS: tuple[tuple[str, _Key], ...] = (
    ("shape and order", lambda shape: shape),
    ("a like shape", lambda shape: (len(shape), shape[1:])),
    ("a like shape", lambda shape: (len(shape), shape[:1])),
)


class _Matching:
    """Deals the live parameters that nothing holds out to the stale tensors."""

    def __init__(self, optimizer: OptimizerFacts) -> None:
        self.optimizer = optimizer
        self.left = list(stale(optimizer))
        self.free = [parameter for parameter in optimizer.not_held() if parameter.requires_grad]
        self.found: dict[int, Counterpart] = {}

    def run(self) -> dict[int, Counterpart]:
        for tensor in self.left:
            if tensor.full_copy_of is not None:
                self.found[tensor.identity] = Counterpart(self.optimizer.parameters[tensor.full_copy_of], "identity")
        self.by_name()
        self.by_position()
        for by, key in _WAYS:
            self.in_turn(by, key)
        return self.found

    def still_free(self) -> list[LiveParameter]:
        taken = {counterpart.parameter.identity for counterpart in self.found.values()}
        return [parameter for parameter in self.free if parameter.identity not in taken]

    def by_name(self) -> None:
        names = {alias: parameter for parameter in self.still_free() for alias in parameter.aliases}
        for tensor in self.left:
            name = without_wrappers(tensor.name)
            if tensor.identity not in self.found and name in names:
                self.found[tensor.identity] = Counterpart(names[name], "name")

    def by_position(self) -> None:
        """One optimizer of all parameters in their order: each stale tensor stands where its parameter stands now."""
        places = {tensor.identity: place for place, tensor in reversed(list(enumerate(self.optimizer.held)))}
        order = [parameter for parameter in self.optimizer.parameters if parameter.requires_grad]
        free = {parameter.identity for parameter in self.still_free()}
        matched = {}
        for tensor in self.left:
            if tensor.identity in self.found:
                continue
            place = places[tensor.identity]
            live = order[place] if place < len(order) else None
            same = live is not None and live.global_shape == self.optimizer.specs[tensor.spec].shape
            if live is None or not same or live.identity not in free:
                return  # the order is another one
            matched[tensor.identity] = Counterpart(live, "shape and order")
        self.found |= matched

    def in_turn(self, by: str, key: _Key) -> None:
        """Of each shape, the first live parameter goes to the first stale tensor, and so on."""
        waiting: dict[object, list[LiveParameter]] = {}
        for parameter in reversed(self.still_free()):
            waiting.setdefault(key(parameter.global_shape), []).append(parameter)
        for tensor in self.left:
            shape = self.optimizer.specs[tensor.spec].shape
            if tensor.identity not in self.found and shape and waiting.get(key(shape)):
                self.found[tensor.identity] = Counterpart(waiting[key(shape)].pop(), by)
