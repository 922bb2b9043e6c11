"""D406 tie-not-real."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.analysis.keys import KeyResolver
from shardlint.analysis.ties import declared_ties, wanted_pairs
from shardlint.facts import ModelFacts, TensorFacts
from shardlint.names import owner_of


class TieNotReal(Rule):
    """
    Two tensors that are declared tied, and that the configuration asks to tie, have storages of their own.

    ## What it does
    Expands the tied-weights declarations of all classes whose configuration ties, and compares the storages of both
    ends of each tie. Equal values are not enough. A pair of which the checkpoint stores both ends is left out: the
    loader keeps such a pair apart on purpose.

    ## Why it is unsafe
    The two ends drift apart with the first optimizer step, and saving drops one of them as a duplicate of the other.
    `to_empty`, replacing an embedding, and loading with `assign=True` all untie silently.

    ## What to do
    Call `tie_weights()` after materialization, after resizing and after loading, and before sharding and before the
    optimizer is built. Set `tie_word_embeddings` to false if the ends are meant to differ.
    """

    code = "D406"
    name = "tie-not-real"
    phase = Phase.D4
    severity = Severity.ERROR
    needs = (Section.MODEL,)

    noun = "tie"

    def subjects(self, facts: Facts) -> Iterator[_Tie]:
        model = facts.require(Section.MODEL)
        pairs, stored = wanted_pairs(model, facts.contract), _Stored(facts)
        names = model.tensor_by_name() if pairs else {}
        for target, source in pairs.items():
            yield _Tie(f"{target} = {source}", target, source, names[target], names[source], stored)
        yield from self.undecided(model, pairs, stored)

    def undecided(self, model: ModelFacts, pairs: Mapping[str, str], stored: _Stored) -> Iterator[_Tie]:
        """Declared pairs of which no configuration says whether they are to be tied, and no record of the library."""
        if any(declaration.active_ties is not None for declaration in model.declarations):
            return
        names = model.tensor_by_name()
        for tie in declared_ties(model):
            for target, source in tie.pairs if tie.wanted is None else ():
                if target not in pairs:
                    left, right = names[target], names[source]
                    yield _Tie(f"{target} = {source}", target, source, left, right, stored, wanted=False)

    def judge(self, tie: _Tie, facts: Facts) -> Iterable[Finding]:
        left, right = tie.left, tie.right
        if left is right or (left.storage is not None and left.storage == right.storage):
            return ()
        if _one_parameter(facts, tie):
            return ()  # one sharded tensor, of which each unit has a full copy within a step
        if not tie.wanted:
            raise NotEvaluated("no configuration says whether it is wanted")
        if tie.stored.holds(tie.target) and tie.stored.holds(tie.source):
            return ()
        if left.storage is None or right.storage is None:
            raise NotEvaluated("no storage can be compared (meta or wrapped tensors)")
        return (self._finding(tie.target, tie.source, left, right),)

    def _finding(self, target: str, source: str, left: TensorFacts, right: TensorFacts) -> Finding:
        return self.finding(
            subject=target,
            message=f"expected {target} to share the storage of {source}, found two storages",
            evidence={"source": source, "shapes": (left.shape, right.shape), "dtypes": (left.dtype, right.dtype)},
            owner=owner_of(target),
        )


@frozen
class _Tie:
    """A declared pair; `wanted` is False when nothing says whether it is to be tied."""

    name: str
    target: str
    source: str
    left: TensorFacts
    right: TensorFacts
    stored: _Stored
    wanted: bool = True


class _Stored:
    """The live names that the checkpoint holds, with the last two segments of keys that no live name answers to."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @cached_property
    def names(self) -> set[str]:
        checkpoint, model = self.facts.checkpoint, self.facts.model
        if checkpoint is None or model is None:
            return set()
        resolver = KeyResolver(model)
        return {resolver.live_name(entry.key) or _ending(entry.key) for entry in checkpoint.entries}

    def holds(self, name: str) -> bool:
        return name in self.names or _ending(name) in self.names


def _ending(name: str) -> str:
    return "..." + ".".join(name.split(".")[-2:])


def _one_parameter(facts: Facts, tie: _Tie) -> bool:
    """Whether units manage one sharded tensor under both names."""
    records = facts.sharding.parameters if facts.sharding is not None else ()
    ends = {record.fqn: record.identity for record in records if record.fqn in (tie.target, tie.source)}
    return len(ends) == 2 and len(set(ends.values())) == 1
