"""D403 materialization-invariant-failed."""

from __future__ import annotations

from shardlint import Phase, Severity
from shardlint_rules._invariants import InvariantRule


class MaterializationInvariantFailed(InvariantRule):
    """
    An invariant that has to hold once the tensors have real storage does not hold.

    ## What it does
    Reports every invariant of the phase `materialization` whose checker returned a failure or raised. The checker ran
    while the facts were collected; what it returned is the evidence.

    ## Why it is unsafe
    The tensors hold something else than the model's owner says they must, and the first step will use it.

    ## What to do
    Read the evidence, fix the initialisation or the materialization that it names.
    """

    code = "D403"
    name = "materialization-invariant-failed"
    phase = Phase.D4
    severity = Severity.ERROR
    lifecycle = "materialization"
