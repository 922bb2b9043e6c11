"""D207 dead-shadow-of-tie."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.names import owner_of
from shardlint_rules._shadows import dead_shadows


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        shadows = dead_shadows(facts)
        for tensor in shadows.found:
            yield self.finding(
                subject=tensor.fqn,
                message=f"trainable, of the shape {list(tensor.shape)} of a tied pair, without second name or source",
                evidence={"shape": tensor.shape},
                owner=owner_of(tensor.fqn),
            )
        if shadows.undecided:
            names = ", ".join(tensor.fqn for tensor in shadows.undecided)
            raise NotEvaluated(f"neither a load report nor a checkpoint says whether there is a source for {names}")
