"""D408 non-finite-state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.analysis.origins import TensorOrigin, origins
from shardlint.facts import SkippedTensor, TensorFacts, TensorValues
from shardlint.names import counted, owner_of


class NonFiniteState(Rule):
    """
    A parameter or buffer holds NaN or infinity.

    ## What it does
    Reports every tensor with an element that is not finite, with the counts, this rank, and where the value came from
    as far as that is known. Buffers that hold minus infinity and zero and nothing else are masks, those that hold one
    infinity everywhere are bounds that are not set: both are left alone. What `watch_writes` planted is D405's. Of
    quantised tensors codes and scales are looked at, of sparse ones the values, of complex ones both halves; for a
    tensor that cannot be looked at the rule is not evaluated.

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
    noun = "tensor"

    def subjects(self, facts: Facts) -> Iterator[tuple[TensorValues | SkippedTensor, _Origins]]:
        values, origins_once = facts.require(Section.VALUES), _Origins(facts)
        for seen in chain[TensorValues | SkippedTensor](values.tensors, values.skipped):
            yield seen, origins_once

    def judge(self, subject: tuple[TensorValues | SkippedTensor, _Origins], facts: Facts) -> Iterable[Finding]:
        seen, sources = subject
        if isinstance(seen, SkippedTensor):
            raise NotEvaluated(seen.reason)
        if seen.finite or seen.unwritten or _by_design(seen, sources.tensors.get(seen.fqn)):
            return ()
        return (self.not_finite(seen, sources.known.get(seen.fqn), facts),)

    def not_finite(self, seen: TensorValues, origin: TensorOrigin | None, facts: Facts) -> Finding:
        return self.finding(
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


class _Origins:
    """The live tensors and where their values came from: looked up once, and only when something is not finite."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @cached_property
    def tensors(self) -> dict[str, TensorFacts]:
        return self.facts.model.tensor_by_name() if self.facts.model is not None else {}

    @cached_property
    def known(self) -> Mapping[str, TensorOrigin]:
        return origins(self.facts)


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
