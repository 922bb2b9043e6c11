"""D207 dead-shadow-of-tie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.facts import TensorFacts
from shardlint.names import owner_of
from shardlint_rules._shadows import shadow_candidates, without_source


class DeadShadowOfTie(Rule):
    """
    Beside a tied pair stands a trainable tensor of the same shape that nothing uses.

    ## What it does
    Where two names share one matrix, looks for another trainable matrix of that shape that has no second name and no
    source in the checkpoint. Whether it has a source is known from the load report or from the checkpoint's headers;
    without either the rule says so. A model in which no pair is tied, such as a pipeline stage, has no shadows.

    ## Why it is unsafe
    The tensor is as large as the embedding, is initialised at random, may be sharded, optimised, decayed and saved, and
    has no effect. Whoever loads the checkpoint later may take it for the head.

    ## What to do
    Remove the module that the tie replaced, or tie it too.
    """

    code = "D207"
    name = "dead-shadow-of-tie"
    phase = Phase.D2
    severity = Severity.WARNING
    needs = (Section.MODEL,)

    noun = "tied tensor"

    def subjects(self, facts: Facts) -> Iterable[tuple[TensorFacts, list[TensorFacts]]]:
        return shadow_candidates(facts)

    def judge(self, subject: tuple[TensorFacts, list[TensorFacts]], facts: Facts) -> Iterator[Finding]:
        _, candidates = subject
        if not candidates:
            return
        missing = without_source(facts)
        if missing is None:
            names = ", ".join(tensor.fqn for tensor in candidates)
            raise NotEvaluated(f"neither a load report nor a checkpoint says whether there is a source for {names}")
        for tensor in candidates:
            if tensor.fqn in missing:
                yield self.finding(
                    subject=tensor.fqn,
                    message=f"trainable, of the shape {list(tensor.shape)} of a tied pair, "
                    "without second name or source",
                    evidence={"shape": tensor.shape},
                    owner=owner_of(tensor.fqn),
                )
