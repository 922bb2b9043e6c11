"""D508 conversion-ambiguous."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind

_KINDS = {
    "duplicate-source": "two stored keys are for one live tensor",
    "double-write": "two conversions write one live tensor",
    "mixed-group": "one live tensor is stored in two forms, whole and in parts",
    "shared-pattern": "two different conversions take the same keys",
}
# Parts that quantisers store below the name of the tensor that they belong to.
_PARTS_OF_A_TENSOR = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state", "SCB", "weight_format")


class ConversionAmbiguous(Rule):
    """
    Two stored keys are for one live tensor, or two conversions for one key.

    ## What it does
    Follows every stored key through all renamings and conversions of the load plan and reports where two arrive at one
    live tensor, where a tensor is stored both fused and in parts, where two conversions claim the same source, and
    where the name of one stored tensor is the name of a module that holds others.

    ## Why it is unsafe
    The loader takes one of the two without a word: the first in the order of the names, or the last conversion. Which
    one that is may change with the next release, and the other is thrown away.

    ## What to do
    Remove the copy that is not meant from the checkpoint, or correct the conversion that sends both to one place.
    """

    code = "D508"
    name = "conversion-ambiguous"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.PLAN,)

    def check(self, facts: Facts) -> Iterator[Finding]:
        assert facts.plan is not None
        for remark in facts.plan.remarks:
            if remark.kind in _KINDS:
                yield self.finding(
                    subject=remark.name,
                    kind=SubjectKind.PATTERN if remark.kind == "shared-pattern" else SubjectKind.TENSOR,
                    message=f"{remark.name}: {_KINDS[remark.kind]}: {remark.detail}",
                    evidence={"kind": remark.kind, "keys": remark.keys[:50]},
                    key=f"{remark.kind}:{','.join(remark.keys[:2])}",
                )
        if facts.checkpoint is not None:
            for short, long in _nested({entry.key for entry in facts.checkpoint.entries}):
                yield self.finding(
                    subject=short,
                    kind=SubjectKind.KEY,
                    message=f"{short} is a stored tensor and also the name of a module that holds {long}",
                    evidence={"kind": "nested-key", "keys": [short, long]},
                    key="nested-key",
                )


def _nested(keys: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each key that is another key's prefix, with the first such other. A low dot puts them side by side."""
    ordered = sorted(key.replace(".", "\0") for key in keys)
    for short, long in itertools.pairwise(ordered):
        if long.startswith(short + "\0"):
            rest = long[len(short) + 1 :].split("\0")
            if not set(rest) & set(_PARTS_OF_A_TENSOR):
                yield short.replace("\0", "."), long.replace("\0", ".")
