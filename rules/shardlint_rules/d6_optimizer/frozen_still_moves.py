"""D612 frozen-still-moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.facts import HeldTensor, LiveParameter, known

from ._held import group_text, where


class FrozenStillMoves(Rule):
    """
    A frozen parameter is still updated by the optimizer.

    ## What it does
    Reports parameters that need no gradient, stand in a group with a learning rate, and have a gradient all the same:
    one that was left from before they were frozen. A gradient of zeros counts where the optimizer keeps moments of
    earlier ones. Those that weight decay moves are D606's.

    ## Why it is unsafe
    An optimizer asks for a gradient, not for `requires_grad`. With a gradient of zeros, moments of earlier steps go on
    moving the parameter; with the last gradient that was computed, each step repeats it. What was to stay as it is
    drifts away.

    ## What to do
    Freeze before the first backward, or drop the gradient (`zero_grad(set_to_none=True)`, `parameter.grad = None`) when
    freezing; better, take the parameter out of the optimizer.
    """

    code = "D612"
    name = "frozen-still-moves"
    phase = Phase.D6
    severity = Severity.WARNING
    needs = (Section.OPTIMIZER,)
    noun = "frozen parameter"

    def subjects(self, facts: Facts) -> Iterator[tuple[LiveParameter, HeldTensor]]:
        optimizer = facts.require(Section.OPTIMIZER)
        for held in optimizer.held:
            parameter = optimizer.parameter_of(held)
            if parameter is not None and not parameter.requires_grad:
                yield parameter, held

    def judge(self, subject: tuple[LiveParameter, HeldTensor], facts: Facts) -> Iterable[Finding]:
        parameter, held = subject
        optimizer = facts.require(Section.OPTIMIZER)
        group = optimizer.group_of(held)
        if not parameter.has_gradient or group.number("lr") == 0.0 or group.number("weight_decay"):
            return ()
        if not held.has_state and known(parameter.zero_gradient):
            return ()  # zeros without moments of earlier steps move nothing
        moments = " and keeps moments of it" if held.has_state else ""
        finding = self.finding(
            subject=parameter.fqn,
            message=f"frozen, but it has a gradient, and {group_text(optimizer, held)} holds it{moments}: "
            "each step moves it",
            evidence={"place": where(optimizer, held), "state": held.has_state},
            owner=parameter.owner or None,
        )
        return (finding,)
