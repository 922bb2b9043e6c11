"""D408 non-finite-state."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.analysis.origins import origins
from shardlint.facts import TensorFacts, TensorValues
from shardlint.names import counted, owner_of


class NonFiniteState(Rule):
    """
    A parameter or buffer holds NaN or infinity.

    ## What it does
    Reports every tensor with an element that is not finite, with the counts, this rank, and where the value came from
    as far as that is known. Buffers that hold minus infinity and zero and nothing else are masks, those that hold one
    infinity everywhere are bounds that are not set: both are left alone. What `watch_writes` planted is D405's.

    ## Why it is unsafe
    One NaN reaches every output within a forward and every parameter within a step. On one rank of many it looks like a
    data problem for as long as losses are averaged away.

    ## What to do
    Look at the origin: load the tensor again, or fix the initialiser or conversion that made it.
    """

    code = "D408"
    name = "non-finite-state"
    phase = Phase.D4
    severity = Severity.ERROR
    needs = (Section.VALUES,)

    def check(self, facts: Facts) -> Iterator[Finding]:
        values = facts.require(Section.VALUES)
        suspects = [
            tensor_values
            for tensor_values in values.tensors
            if not tensor_values.finite and not tensor_values.unwritten
        ]
        if not suspects:
            return
        tensors = facts.model.tensor_by_name() if facts.model is not None else {}
        known = origins(facts)
        for seen in suspects:
            tensor = tensors.get(seen.fqn)
            if not _by_design(seen, tensor):
                origin = known.get(seen.fqn)
                yield self.finding(
                    subject=seen.fqn,
                    message=f"expected finite values, found {_counts(seen)} of {counted(seen.elements, 'element')}"
                    + (f"; {origin.text()}" if origin and origin.kind != "unknown" else ""),
                    evidence={
                        "nan": seen.nan,
                        "positive_infinite": seen.positive_infinite,
                        "negative_infinite": seen.negative_infinite,
                        "origin": origin.as_mapping() if origin else None,
                    },
                    owner=owner_of(seen.fqn),
                    ranks=(facts.environment.rank,) if facts.environment.world_size > 1 else (),
                )


def _by_design(seen: TensorValues, tensor: TensorFacts | None) -> bool:
    """Whether a buffer is a mask, or a bound that is not set."""
    if seen.nan or (tensor is not None and tensor.is_parameter):
        return False
    if seen.constant:
        return True
    return not seen.positive_infinite and seen.minimum in (None, 0) and seen.maximum in (None, 0)


def _counts(seen: TensorValues) -> str:
    counts = {"NaN": seen.nan, "+Inf": seen.positive_infinite, "-Inf": seen.negative_infinite}
    return " and ".join(f"{count} {name}" for name, count in counts.items() if count)
