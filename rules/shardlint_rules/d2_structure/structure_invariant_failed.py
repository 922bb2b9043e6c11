"""D202 structure-invariant-failed."""

from __future__ import annotations

from shardlint import Phase, Severity
from shardlint_rules._invariants import InvariantRule


class StructureInvariantFailed(InvariantRule):
    """
    An invariant that has to hold once the model is built does not hold.

    ## What it does
    Reports every invariant of the phase `structure` whose checker returned a failure or raised. The checker ran
    while the facts were collected; what it returned is the evidence.

    ## Why it is unsafe
    The model's owner declared that training is wrong without it.

    ## What to do
    Read the evidence, fix the structure that it names; change the invariant only if it is wrong itself.
    """

    code = "D202"
    name = "structure-invariant-failed"
    phase = Phase.D2
    severity = Severity.ERROR
    lifecycle = "structure"
