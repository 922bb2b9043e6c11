"""D409 precision-critical-narrowed."""

from __future__ import annotations

from collections.abc import Iterable

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.facts import PrecisionCritical
from shardlint.names import owner_of

_BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}


class PrecisionCriticalNarrowed(Rule):
    """
    A tensor that needs 32 bits is held in fewer than its source has.

    ## What it does
    Looks at tensors that their class keeps in float32 (`_keep_in_fp32_modules_strict` whatever dtype is asked for,
    `_keep_in_fp32_modules` when it is float16), and at those that are known to need it: correction bias of a router,
    `A_log` and `D` of a state-space model. Reports one that is float16 or bfloat16 where the checkpoint has more, or
    where the class insists on float32 and no checkpoint says otherwise, and says how many of the source's distinct
    values became equal. A tensor that the checkpoint itself stores that narrow is left alone.

    ## Why it is unsafe
    These tensors decide by small differences: a correction bias in bfloat16 steers tokens by steps that are larger than
    the differences between experts, a decay that is rounded changes the memory of every layer. Nothing raises.

    ## What to do
    Keep the tensor in float32 when the model is cast (`_keep_in_fp32_modules_strict`, or cast it back after `.to()`),
    and keep it out of low-precision units.
    """

    code = "D409"
    name = "precision-critical-narrowed"
    phase = Phase.D4
    severity = Severity.WARNING
    needs = (Section.VALUES,)
    noun = "tensor"

    def subjects(self, facts: Facts) -> tuple[PrecisionCritical, ...]:
        return facts.require(Section.VALUES).critical

    def judge(self, tensor: PrecisionCritical, facts: Facts) -> Iterable[Finding]:
        if tensor.declared and not tensor.strict and tensor.dtype != "float16":
            return ()  # the library keeps it in float32 for float16 alone
        if tensor.source_dtype is None and not tensor.declared:
            raise NotEvaluated("no checkpoint says how wide its source is")
        if tensor.source_dtype is not None and _BITS[tensor.source_dtype] <= _BITS[tensor.dtype]:
            return ()
        return (self.narrowed(tensor),)

    def narrowed(self, tensor: PrecisionCritical) -> Finding:
        source = f"{tensor.source_dtype} in the checkpoint" if tensor.source_dtype else "float32"
        lost = f"; {tensor.collapsed} of {tensor.distinct} distinct values became equal" if tensor.collapsed else ""
        return self.finding(
            subject=tensor.fqn,
            message=f"expected {source}, found {tensor.dtype}: {tensor.because}{lost}",
            evidence={
                "because": tensor.because,
                "source": tensor.source_key,
                "source_dtype": tensor.source_dtype,
                "distinct": tensor.distinct,
                "collapsed": tensor.collapsed,
            },
            owner=owner_of(tensor.fqn),
        )
