"""D707 non-finite-gradient."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.facts import GradientFacts, RuntimeFacts, is_known


class NonFiniteGradient(Rule):
    """
    A gradient held NaN or Inf when the optimizer was about to step.

    ## What it does
    Takes the largest magnitude of every gradient before each traced optimizer step (without one: at the end of the
    trace), in one fused pass. Names the unit in which the backward met it first.

    ## Why it is unsafe
    One step makes the parameter NaN, and the next forward everything else. On one rank it spreads with the reduction;
    gradient clipping by a norm that is NaN spreads it to every parameter.

    ## What to do
    Look at the unit that the backward met first: a division by zero, a logarithm or square root of zero, an overflow
    in fp16, a mask that leaves a row of a softmax empty. With a loss scaler, trace a step that it does not skip.
    """

    code = "D707"
    name = "non-finite-gradient"
    phase = Phase.D7
    severity = Severity.ERROR
    needs = (Section.RUNTIME,)

    noun = "gradient"

    def subjects(self, facts: Facts) -> Iterator[tuple[GradientFacts, str, int]]:
        runtime = facts.require(Section.RUNTIME)
        bad = [gradient for gradient in runtime.gradients if is_known(gradient.not_finite) and gradient.not_finite]
        origin = _first_met(runtime, bad) if len(bad) > 1 else ""
        for gradient in runtime.gradients:
            if gradient.present:
                yield gradient, origin, len(bad)

    def judge(self, subject: tuple[GradientFacts, str, int], facts: Facts) -> Iterator[Finding]:
        gradient, origin, bad = subject
        if gradient.not_finite:
            looks = len(facts.require(Section.RUNTIME).looks)
            when = "" if looks == 1 else f" at {len(gradient.not_finite)} of {looks} looks"
            first = f"; the backward met it first in {origin}" if origin else ""
            yield self.finding(
                subject=gradient.fqn,
                owner=gradient.units[0] if gradient.units else None,
                message=f"its gradient holds NaN or Inf{when}{first}",
                evidence={"looks": gradient.not_finite, "first_met_in": origin, "parameters": bad},
            )


def _first_met(runtime: RuntimeFacts, bad: list[GradientFacts]) -> str:
    """The unit among those with bad gradients of which the backward began first; empty when no order was seen."""
    units = {unit for gradient in bad for unit in gradient.units}
    return next((unit for unit in runtime.order("backward") if unit in units), "")
