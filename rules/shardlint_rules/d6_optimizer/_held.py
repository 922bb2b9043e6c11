"""What the rules of this phase share: the section, and which live parameter a tensor of the optimizer once was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from attrs import frozen

from shardlint import Facts
from shardlint.analysis.wrapper_names import without_wrappers
from shardlint.facts import HeldTensor, LiveParameter, OptimizerFacts


@frozen
class Counterpart:
    """The live parameter that a stale tensor once was, and what tells so: name, shape and order, or a like shape."""

    parameter: LiveParameter
    by: str


def optimizer_of(facts: Facts) -> OptimizerFacts:
    """The optimizer section of rules that need it."""
    assert facts.optimizer is not None
    return facts.optimizer


def partitioned(optimizer: OptimizerFacts) -> list[str]:
    """Why some optimizers cannot be matched with parameters one by one, and what could not be read at all."""
    reasons = [f"{item.name}: {item.partitioned}" for item in optimizer.optimizers if item.partitioned]
    return [*reasons, *optimizer.unread]


def where(optimizer: OptimizerFacts, held: HeldTensor) -> str:
    """`optimizer, group 1, position 3`, with the group's name when it has one."""
    return f"{optimizer.optimizer_of(held).name}, {group_text(optimizer, held)}, position {held.position}"


def group_text(optimizer: OptimizerFacts, held: HeldTensor) -> str:
    """`group 1`, or `group 1 (no-decay)`."""
    group = optimizer.group_of(held)
    number = f"group {group.position}"
    return number if group.name == number else f"{number} ({group.name})"


def stale(optimizer: OptimizerFacts) -> Iterator[HeldTensor]:
    """Held tensors that are no live parameter; emptied ones and flat parts of many parameters are left out."""
    seen: set[int] = set()
    for held in optimizer.held:
        spec = optimizer.specs[held.spec]
        if held.parameter is not None or optimizer.optimizer_of(held).partitioned or held.identity in seen:
            continue
        if prod(spec.shape):
            seen.add(held.identity)
            yield held


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
        self.free = [item for item in optimizer.not_held() if item.requires_grad]
        self.found: dict[int, Counterpart] = {}

    def run(self) -> dict[int, Counterpart]:
        for held in self.left:
            if held.full_copy_of is not None:
                self.found[held.identity] = Counterpart(self.optimizer.parameters[held.full_copy_of], "identity")
        self.by_name()
        for by, key in _WAYS:
            self.in_turn(by, key)
        return self.found

    def still_free(self) -> list[LiveParameter]:
        taken = {item.parameter.identity for item in self.found.values()}
        return [item for item in self.free if item.identity not in taken]

    def by_name(self) -> None:
        names = {alias: item for item in self.still_free() for alias in item.aliases}
        for held in self.left:
            name = without_wrappers(held.name)
            if held.identity not in self.found and name in names:
                self.found[held.identity] = Counterpart(names[name], "name")

    def in_turn(self, by: str, key: _Key) -> None:
        """Of each shape, the first live parameter goes to the first stale tensor, and so on."""
        waiting: dict[object, list[LiveParameter]] = {}
        for item in reversed(self.still_free()):
            waiting.setdefault(key(item.global_shape), []).append(item)
        for held in self.left:
            shape = self.optimizer.specs[held.spec].shape
            if held.identity not in self.found and shape and waiting.get(key(shape)):
                self.found[held.identity] = Counterpart(waiting[key(shape)].pop(), by)
