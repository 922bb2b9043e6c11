"""D709 modality-without-gradient."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.contract_globs import first_match
from shardlint.facts import DataSemanticsFacts, GradientFacts, RuntimeFacts
from shardlint.names import counted

from ._traces import after_backward


@frozen
class _Modality:
    """A modality, those of its fields that were given (None: none is named), its trainable parameters' gradients."""

    name: str
    given: tuple[str, ...] | None
    gradients: list[GradientFacts]


class ModalityWithoutGradient(Rule):
    """
    A modality's fields were given, and none of its parameters got a finite gradient.

    ## What it does
    For each modality of the contract's data semantics of which a field was given in some traced forward, looks for a
    finite gradient among the trainable parameters that the contract names for it. Steps without the modality (text
    only), and modalities whose parameters are all frozen, say nothing.

    ## Why it is unsafe
    The modality's tower does not train: its embeddings are detached, never merged into the sequence, or masked out of
    the loss, while the loss of the text goes down all the same.

    ## What to do
    Follow the modality's features from the tower to the place where they replace the placeholder tokens.
    """

    code = "D709"
    name = "modality-without-gradient"
    phase = Phase.D7
    severity = Severity.ERROR
    needs = (Section.RUNTIME, Section.CONTRACT)
    related_config = ("contract.data.modality-fields", "contract.data.modality-parameters")

    noun = "modality"

    def subjects(self, facts: Facts) -> Iterator[_Modality]:
        runtime, data = facts.require(Section.RUNTIME), facts.require(Section.CONTRACT).data
        if data is None or not data.modality_parameters:
            return
        after_backward(runtime)
        for name, globs in data.modality_parameters.items():
            gradients = [gradient for gradient in runtime.gradients if _named(gradient, globs)]
            given = _given(runtime, data, name)
            if gradients and given != ():
                yield _Modality(name, given, gradients)

    def judge(self, modality: _Modality, facts: Facts) -> Iterator[Finding]:
        if modality.given is None:
            raise NotEvaluated(f"the contract names no fields of {modality.name}, so no step is known to hold it")
        if not any(gradient.finite for gradient in modality.gradients):
            yield self._silent(modality.name, modality.given, modality.gradients)

    def _silent(self, modality: str, given: tuple[str, ...], gradients: list[GradientFacts]) -> Finding:
        bad = sum(1 for gradient in gradients if gradient.not_finite)
        what = f"; {bad} hold NaN or Inf" if bad else ""
        many = counted(len(gradients), "parameter")
        return self.finding(
            subject=modality,
            kind=SubjectKind.FIELD,
            message=f"{', '.join(given)} given, but none of its {many} got a finite gradient{what}",
            evidence={"fields": given, "parameters": [gradient.fqn for gradient in gradients], "not_finite": bad},
        )


def _named(gradient: GradientFacts, globs: tuple[str, ...]) -> bool:
    return bool(first_match(globs, gradient.aliases or (gradient.fqn,)))


def _given(runtime: RuntimeFacts, data: DataSemanticsFacts, modality: str) -> tuple[str, ...] | None:
    """The modality's fields that some traced forward got; None when the contract names none."""
    fields = data.modality_fields.get(modality)
    if not fields:
        return None
    seen = {name for step in runtime.training_steps() for name in step.fields}
    return tuple(name for name in fields if name in seen)
