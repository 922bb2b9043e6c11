"""D704 runtime-invariant-failed."""

from __future__ import annotations

from shardlint import Phase, Severity
from shardlint_rules._invariants import InvariantRule


class RuntimeInvariantFailed(InvariantRule):
    """
    An invariant that has to hold after a training step does not hold.

    ## What it does
    Reports every invariant of the phase `runtime` whose checker returned a failure or raised. Such checkers run only
    when a trace is given, on the model as it is after the traced steps; what they returned is the evidence.

    ## Why it is unsafe
    The step left the model in a state that its owner says it must not be in, and the next step starts from it.

    ## What to do
    Read the evidence, fix the part of the step that it names.
    """

    code = "D704"
    name = "runtime-invariant-failed"
    phase = Phase.D7
    severity = Severity.ERROR
    lifecycle = "runtime"
