"""D503 checkpoint-invariant-failed."""

from __future__ import annotations

from shardlint import Phase, Severity
from shardlint_rules._invariants import InvariantRule


class CheckpointInvariantFailed(InvariantRule):
    """
    An invariant that has to hold once the checkpoint is loaded does not hold.

    ## What it does
    Reports every invariant of the phase `checkpoint` whose checker returned a failure or raised. The checker ran
    while the facts were collected; what it returned is the evidence.

    ## Why it is unsafe
    The load reported success, but the model's owner says that the result is wrong.

    ## What to do
    Read the evidence, fix the loading, the checkpoint or the conversion that it names.
    """

    code = "D503"
    name = "checkpoint-invariant-failed"
    phase = Phase.D5
    severity = Severity.ERROR
    lifecycle = "checkpoint"
