"""D401 meta-tensor-left."""

from __future__ import annotations

from collections.abc import Iterable

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.analysis.contract_globs import first_match
from shardlint.facts import TensorFacts
from shardlint.names import owner_of


class MetaTensorLeft(Rule):
    """
    A parameter or buffer has no storage: it is still on the meta device.

    ## What it does
    Reports every parameter and buffer, under all its names, that is a meta tensor after materialization. Buffers that
    the contract declares to be built lazily (`lazy_buffers`) are left out.

    ## Why it is unsafe
    A meta parameter fails at the first forward. A meta buffer may never be noticed: what is written to it is lost, and
    what a later `to_empty` puts there is whatever the memory held. No validation of values can mean anything meanwhile.

    ## What to do
    Load or initialise the tensor after the model is moved off meta. A buffer that is not stored in checkpoints has to
    be computed again by its module.
    """

    code = "D401"
    name = "meta-tensor-left"
    phase = Phase.D4
    severity = Severity.ERROR
    needs = (Section.MODEL,)
    noun = "tensor"
    blocks = ("V0",)
    related_config = ("contract.lazy-buffers",)

    def subjects(self, facts: Facts) -> tuple[TensorFacts, ...]:
        return facts.require(Section.MODEL).tensors

    def judge(self, tensor: TensorFacts, facts: Facts) -> Iterable[Finding]:
        if not tensor.is_meta:
            return ()
        lazy = facts.contract.lazy_buffers if facts.contract else ()
        if not tensor.is_parameter and first_match(lazy, tensor.aliases):
            return ()
        return (self.left(tensor),)

    def left(self, tensor: TensorFacts) -> Finding:
        names = sorted(tensor.aliases)
        aliases = {"aliases": names} if len(names) > 1 else {}
        return self.finding(
            subject=tensor.fqn,
            message=f"expected the {tensor.kind} {' = '.join(names)} to have storage, found a meta tensor",
            evidence={**aliases, "shape": tensor.shape, "dtype": tensor.dtype},
            owner=owner_of(tensor.fqn),
        )
