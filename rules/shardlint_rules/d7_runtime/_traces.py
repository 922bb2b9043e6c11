"""What the rules of this phase ask of a trace before what is absent in it proves anything."""

from __future__ import annotations

from shardlint import NotEvaluated
from shardlint.facts import RuntimeFacts, TracedUnit


def complete(runtime: RuntimeFacts) -> None:
    """Raise `NotEvaluated` when the trace lost events, so that what is absent proves nothing."""
    if runtime.dropped:
        raise NotEvaluated(f"the trace dropped {runtime.dropped} events beyond its limit")


def seen(unit: TracedUnit) -> None:
    """Raise `NotEvaluated` when the forwards of `unit` cannot be seen."""
    if not unit.observed:
        raise NotEvaluated(f"its forward cannot be seen: {unit.why_unobserved or 'it is not observed'}")


def after_backward(runtime: RuntimeFacts) -> None:
    """Raise `NotEvaluated` when no gradient can be expected: the traced block raised, or had no backward."""
    if runtime.raised:
        raise NotEvaluated(f"the traced block raised {runtime.raised}")
    if not runtime.backwards and not any(gradient.present or gradient.accumulated for gradient in runtime.gradients):
        raise NotEvaluated("no backward was traced")
