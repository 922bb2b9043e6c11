"""D406 tie-not-real."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.analysis.keys import KeyResolver
from shardlint.analysis.ties import wanted_pairs
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

    def check(self, facts: Facts) -> Iterator[Finding]:
        model = facts.require(Section.MODEL)
        pairs = wanted_pairs(model)
        if not pairs:
            return
        names = model.tensor_by_name()
        records = facts.sharding.parameters if facts.sharding is not None else ()
        identities = {record.fqn: record.identity for record in records if not record.replaced}
        unreadable = []
        apart = [(target, source) for target, source in pairs.items() if names[target] is not names[source]]
        stored = _stored_names(facts, model) if apart else set()
        for target, source in apart:
            left, right = names[target], names[source]
            if target in identities and identities[target] == identities.get(source):
                continue  # one sharded tensor, of which each unit has a full copy within a step
            if left.storage is not None and left.storage == right.storage:
                continue
            if _is_stored(target, stored) and _is_stored(source, stored):
                continue
            if left.storage is None or right.storage is None:
                unreadable.append(f"{target} = {source}")
                continue
            yield self._finding(target, source, left, right)
        if unreadable:
            raise NotEvaluated(f"no storage can be compared (meta or wrapped tensors) of {', '.join(unreadable)}")

    def _finding(self, target: str, source: str, left: TensorFacts, right: TensorFacts) -> Finding:
        return self.finding(
            subject=target,
            message=f"expected {target} to share the storage of {source}, found two storages",
            evidence={"source": source, "shapes": (left.shape, right.shape), "dtypes": (left.dtype, right.dtype)},
            owner=owner_of(target),
        )


def _stored_names(facts: Facts, model: ModelFacts) -> set[str]:
    """The live names that the checkpoint holds, with the last two segments of keys that no live name answers to."""
    if facts.checkpoint is None:
        return set()
    resolver = KeyResolver(model)
    return {resolver.live_name(entry.key) or _ending(entry.key) for entry in facts.checkpoint.entries}


def _is_stored(name: str, stored: set[str]) -> bool:
    return name in stored or _ending(name) in stored


def _ending(name: str) -> str:
    return "..." + ".".join(name.split(".")[-2:])
