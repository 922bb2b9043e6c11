"""D606 frozen-or-unused-in-optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.facts import HeldTensor, LiveParameter
from shardlint_rules._shadows import dead_shadows

from ._held import group_text, where


class FrozenOrUnusedInOptimizer(Rule):
    """
    A parameter that does not train stands in a group with weight decay.

    ## What it does
    Reports frozen parameters that have a gradient, and trainable ones that nothing uses (see D207), in groups with a
    weight decay other than zero. Frozen parameters without a gradient are passed over by every optimizer of torch, and
    left alone here; those that move without any decay are D612's.

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

    noun = "place of a parameter"

    def subjects(self, facts: Facts) -> Iterator[tuple[HeldTensor, LiveParameter, str]]:
        """Parameters in groups, and why one does not train."""
        optimizer = facts.require(Section.OPTIMIZER)
        dead = {name for tensor in dead_shadows(facts).found for name in tensor.aliases}
        for held in optimizer.held:
            parameter = optimizer.parameter_of(held)
            if parameter is not None:
                unused = not dead.isdisjoint(parameter.aliases)
                yield held, parameter, "used by nothing" if unused else "" if parameter.requires_grad else "frozen"

    def judge(self, subject: tuple[HeldTensor, LiveParameter, str], facts: Facts) -> Iterable[Finding]:
        held, parameter, what = subject
        optimizer = facts.require(Section.OPTIMIZER)
        decay = optimizer.group_of(held).number("weight_decay")
        if not what or not decay or (what == "frozen" and not parameter.has_gradient):
            return ()
        finding = self.finding(
            subject=parameter.fqn,
            message=f"{what}, but {group_text(optimizer, held)} decays it with weight_decay={decay:g}",
            evidence={"place": where(optimizer, held), "weight_decay": decay, "reason": what},
            owner=parameter.owner or None,
            key=str(held.group),
        )
        return (finding,)

    def subject_name(self, subject: object) -> str:
        return subject[1].fqn if isinstance(subject, tuple) else super().subject_name(subject)
