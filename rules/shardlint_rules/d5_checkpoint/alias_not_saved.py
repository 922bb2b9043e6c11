"""D519 alias-not-saved."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.analysis.ties import declared_ties
from shardlint.facts import ModelFacts, TensorFacts


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        model = facts.require(Section.MODEL)
        names = model.tensor_by_name()
        dropped = _not_saved(model)
        for tie in declared_ties(model):
            for target, source in tie.pairs:
                left, right = names[target], names[source]
                shared = _share(left, right)
                if shared and tie.wanted is False:
                    yield self._finding(target, source, "shares its memory, and the configuration says it is not tied")
                elif shared is False and target in dropped:
                    yield self._finding(target, source, "has memory of its own, and the class never saves it")

    def _finding(self, target: str, source: str, state: str) -> Finding:
        return self.finding(
            subject=target,
            message=f"{target} is dropped when saving: of the declared tie to {source}, it {state}",
            evidence={"source": source},
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
