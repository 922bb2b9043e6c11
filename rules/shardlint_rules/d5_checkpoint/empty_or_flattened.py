"""D517 empty-or-flattened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property

from attrs import field, frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import CheckpointFacts, EntryFacts, TensorPlan
from shardlint_rules._files import READ_FILES


@frozen(slots=False)
class _Stored:
    """The stored tensors by key, put together when the first one is looked up, and those that were `seen`."""

    checkpoint: CheckpointFacts
    seen: set[str] = field(factory=set)

    @cached_property
    def entries(self) -> dict[str, EntryFacts]:
        return {entry.key: entry for entry in self.checkpoint.entries}


class EmptyOrFlattened(Rule):
    """
    A stored tensor is empty, or one-dimensional where the live tensor is a matrix.

    ## What it does
    Looks at the sources of every live tensor that the load plan cannot fill: a source without elements, or one with a
    single dimension whose length is the element count of the live tensor, or an even part of it.

    ## Why it is unsafe
    This is what a sharded model leaves behind when it is saved from inside: a rank's flat shard, or the empty rest of
    a parameter whose elements another rank holds. The weights of the other ranks are not in the file at all.

    ## What to do
    Save from a full state dict (gather it first), not from the shards of one rank.
    """

    code = "D517"
    name = "empty-or-flattened"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.CHECKPOINT, Section.PLAN)
    tags = (READ_FILES,)

    noun = "tensor"

    def subjects(self, facts: Facts) -> Iterator[tuple[TensorPlan, _Stored]]:
        stored = _Stored(facts.require(Section.CHECKPOINT))
        return ((tensor, stored) for tensor in facts.require(Section.PLAN).tensors)

    def judge(self, subject: tuple[TensorPlan, _Stored], facts: Facts) -> Iterable[Finding]:
        tensor, stored = subject
        return self._judged(tensor, stored) if tensor.status in ("mismatched", "error") else ()

    def _judged(self, tensor: TensorPlan, stored: _Stored) -> Iterator[Finding]:
        sources = [stored.entries[key] for key in tensor.sources if key in stored.entries]
        for entry in sources:
            if entry.key not in stored.seen and (text := _fault(tensor, entry, sources)):
                yield self._finding(tensor, entry, text)
        stored.seen.update(tensor.sources)

    def _finding(self, tensor: TensorPlan, entry: EntryFacts, text: str) -> Finding:
        return self.finding(
            subject=entry.key,
            kind=SubjectKind.KEY,
            message=f"{entry.key} in {entry.file} is stored as {list(entry.shape)}: {text}; "
            f"it is for {tensor.name} of {list(tensor.shape)}",
            evidence={"shape": entry.shape, "live": tensor.name, "live_shape": tensor.shape, "file": entry.file},
        )


def _fault(tensor: TensorPlan, entry: EntryFacts, sources: list[EntryFacts]) -> str:
    stored, live = math.prod(entry.shape), math.prod(tensor.shape)
    if stored == 0 and live:
        return "it has no elements"
    if len(entry.shape) != 1 or len(tensor.shape) < 2:
        return ""
    if len(sources) > 1:
        return "it is flat, and its like are not" if any(len(other.shape) > 1 for other in sources) else ""
    if stored == live:
        return "it is flattened"
    if stored < live and live % stored == 0:
        return f"it is flat and holds one of {live // stored} parts of the elements"
    return ""
