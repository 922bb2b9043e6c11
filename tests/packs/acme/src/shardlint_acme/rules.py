"""Acme's two rules: one with an option, one that says when it cannot know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import field, frozen
from attrs.validators import gt

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.facts import TensorFacts


@frozen(kw_only=True)
class OversizedOptions:
    """Options of ACM001: `limit` in elements."""

    limit: int = field(default=2**31, validator=gt(0))


class OversizedTensor(Rule):
    """
    A parameter has more elements than Acme's kernels can index.

    ## What it does
    Compares the number of elements of every parameter with `limit`, by default 2**31.

    ## Why it is unsafe
    Acme's fused kernels index with 32 bits, and wrap around without an error.

    ## What to do
    Split the parameter, or raise `limit` where no fused kernel is used.
    """

    code = "ACM001"
    name = "oversized-tensor"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.MODEL,)
    tags = ("acme",)
    options_type = OversizedOptions

    noun = "parameter"

    def subjects(self, facts: Facts) -> Iterable[TensorFacts]:
        """Every parameter of the model."""
        return facts.require(Section.MODEL).parameters

    def judge(self, subject: TensorFacts, facts: Facts) -> Iterator[Finding]:
        """Yield a finding for a parameter above the limit."""
        if subject.numel > self.options.limit:
            yield self.finding(
                subject=subject.fqn,
                message=f"expected at most {self.options.limit} elements, found {subject.numel}",
                evidence={"shape": subject.shape, "limit": self.options.limit},
            )


class HalfPrecisionNorm(Rule):
    """
    A norm's weight is kept in half precision.

    ## What it does
    Looks for one-dimensional parameters named `norm` whose dtype has 16 bits.

    ## Why it is unsafe
    Acme's optimizer adds updates that are smaller than the spacing of 16-bit numbers near one,
    so the weight stands still.

    ## What to do
    Keep norms in float32.
    """

    code = "ACM002"
    name = "half-precision-norm"
    phase = Phase.D2
    severity = Severity.WARNING
    needs = (Section.MODEL,)
    tags = ("acme",)

    noun = "norm"

    def subjects(self, facts: Facts) -> Iterable[TensorFacts]:
        """Every norm weight; a model without norms cannot be judged."""
        parameters = facts.require(Section.MODEL).parameters
        if not any("norm" in tensor.fqn for tensor in parameters):
            raise NotEvaluated("the model has no parameter whose name says that it is a norm")
        return [tensor for tensor in parameters if "norm" in tensor.fqn and len(tensor.shape) == 1]

    def judge(self, subject: TensorFacts, facts: Facts) -> Iterator[Finding]:
        """Yield a finding for a norm weight in half precision."""
        if subject.dtype in ("float16", "bfloat16"):
            yield self.finding(subject=subject.fqn, message=f"expected float32, found {subject.dtype}")
