"""Words and small questions that the rules of this phase share."""

from __future__ import annotations

from collections.abc import Iterable

from shardlint import Facts, NotEvaluated
from shardlint.facts import RuntimeFacts
from shardlint.names import listed as names_listed

SHOWN = 6
"""Names that a message lists before it only counts the rest; the evidence has them all."""


def runtime_of(facts: Facts) -> RuntimeFacts:
    """The runtime section of rules that need it."""
    assert facts.runtime is not None
    return facts.runtime


def listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    return names_listed(names, SHOWN)


def complete(runtime: RuntimeFacts) -> None:
    """Raise `NotEvaluated` when the trace lost events, so that what is absent proves nothing."""
    if runtime.dropped:
        raise NotEvaluated(f"the trace dropped {runtime.dropped} events beyond its limit")


def after_backward(runtime: RuntimeFacts) -> None:
    """Raise `NotEvaluated` when no gradient can be expected: the traced block raised, or had no backward."""
    if runtime.raised:
        raise NotEvaluated(f"the traced block raised {runtime.raised}")
    if not runtime.backwards and not any(gradient.present for gradient in runtime.gradients):
        raise NotEvaluated("no backward was traced")
