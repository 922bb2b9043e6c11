"""D606 frozen-or-unused-in-optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint_rules._shadows import dead_shadows

from ._held import group_text, where


class FrozenOrUnusedInOptimizer(Rule):
    """
    A parameter that does not train stands in a group with weight decay.

    ## What it does
    Reports frozen parameters, and trainable ones that nothing uses (see D207), in groups with a weight decay other
    than zero.

    ## Why it is unsafe
    Whatever gives such a parameter a gradient of zeros (`zero_grad(set_to_none=False)`, a reduction of unused
    parameters) makes weight decay shrink it in every step; it also takes memory for state that no step needs.

    ## What to do
    Give the optimizer the trainable parameters alone, or put the others into a group without weight decay.
    """

    code = "D606"
    name = "frozen-or-unused-in-optimizer"
    phase = Phase.D6
    severity = Severity.WARNING
    needs = (Section.OPTIMIZER,)

    def check(self, facts: Facts) -> Iterator[Finding]:
        optimizer = facts.require(Section.OPTIMIZER)
        dead = {name for tensor in dead_shadows(facts).found for name in tensor.aliases}
        for optimized in optimizer.held:
            parameter, decay = optimizer.parameter_of(optimized), optimizer.group_of(optimized).number("weight_decay")
            if parameter is None or not decay:
                continue
            unused = not dead.isdisjoint(parameter.aliases)
            if parameter.requires_grad and not unused:
                continue
            what = "used by nothing" if unused else "frozen"
            yield self.finding(
                subject=parameter.fqn,
                message=f"{what}, but {group_text(optimizer, optimized)} decays it with weight_decay={decay:g}",
                evidence={"place": where(optimizer, optimized), "weight_decay": decay, "reason": what},
                owner=parameter.owner or None,
                key=str(optimized.group),
            )
