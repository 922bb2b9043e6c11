"""D519 alias-not-saved."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.analysis.ties import declared_ties
from shardlint.facts import ModelFacts, TensorFacts


@frozen
class _Pair:
    """Two ends of a declared tie: `unwanted` by the configuration, `name` `dropped` when the class saves."""

    name: str
    source: str
    left: TensorFacts
    right: TensorFacts
    unwanted: bool
    dropped: bool


class AliasNotSaved(Rule):
    """
    Saving drops a tensor as a tied alias, and loading will not restore it.

    ## What it does
    Compares what the classes declare tied with the live storages. Reports a tie whose two ends share memory while the
    configuration says that they are not tied: saving writes one of them, loading does not tie them again. Reports a
    declared tie whose end is on the class's list of keys that are not saved, while it has memory of its own.

    ## Why it is unsafe
    The saved checkpoint lacks the tensor. It loads without an error and the tensor starts from random values.

    ## What to do
    Set `tie_word_embeddings` to what the live model does, or untie the tensors (clone one end) before training.
    """

    code = "D519"
    name = "alias-not-saved"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.MODEL,)
    related_config = ("tie_word_embeddings",)

    noun = "tied pair"

    def subjects(self, facts: Facts) -> Iterator[_Pair]:
        model = facts.require(Section.MODEL)
        names, dropped = model.tensor_by_name(), _not_saved(model)
        for tie in declared_ties(model, facts.contract):
            for target, source in tie.pairs:
                yield _Pair(target, source, names[target], names[source], tie.wanted is False, target in dropped)

    def judge(self, pair: _Pair, facts: Facts) -> Iterator[Finding]:
        if not (pair.unwanted or pair.dropped):
            return
        shared = _share(pair.left, pair.right)
        if shared is None:
            raise NotEvaluated("whether the two share memory is not known")
        if shared and pair.unwanted:
            yield self._finding(pair, "shares its memory, and the configuration says it is not tied")
        elif not shared and pair.dropped:
            yield self._finding(pair, "has memory of its own, and the class never saves it")

    def _finding(self, pair: _Pair, state: str) -> Finding:
        return self.finding(
            subject=pair.name,
            message=f"{pair.name} is dropped when saving: of the declared tie to {pair.source}, it {state}",
            evidence={"source": pair.source},
        )


def _share(left: TensorFacts, right: TensorFacts) -> bool | None:
    """Whether two tensors share memory, None when that cannot be said."""
    if left is right:
        return True
    if left.storage is None or right.storage is None:
        return None
    return left.storage == right.storage


def _not_saved(model: ModelFacts) -> set[str]:
    return {
        f"{declaration.fqn}.{name}" if declaration.fqn else name
        for declaration in model.declarations
        for name in declaration.ignore_on_save
    }
