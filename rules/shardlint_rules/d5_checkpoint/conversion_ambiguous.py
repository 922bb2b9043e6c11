"""D508 conversion-ambiguous."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import LoadRemark
from shardlint_rules._files import READ_FILES
from shardlint_rules._sides import side_of

_KINDS = {
    "duplicate-source": "two stored keys are for one {side.tensor}",
    "ambiguous-prefix": "its name with and without the base-model prefix is live",
    "double-write": "two conversions write one {side.tensor}",
    "mixed-group": "one {side.tensor} is stored in two forms, whole and in parts",
    "shared-pattern": "two different conversions take the same keys",
}
# Parts that quantisers store below the name of the tensor that they belong to.
_PARTS_OF_A_TENSOR = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state", "SCB", "weight_format")


class _Name(NamedTuple):
    """A name, what the plan remarks about it, and a stored key that lies below it, if it is one itself."""

    name: str
    remarks: Sequence[LoadRemark]
    inside: str = ""


class ConversionAmbiguous(Rule):
    """
    Two stored keys are for one live tensor, or two conversions for one key.

    ## What it does
    Follows every stored key through all renamings and conversions of the load plan and reports where two arrive at one
    live tensor, where a key names one live tensor with the base-model prefix and another one without it, where a tensor
    is stored both fused and in parts, where two conversions claim the same source, and
    where the name of one stored tensor is the name of a module that holds others.

    ## Why it is unsafe
    The loader takes one of the two silently: the first in the order of the names, or the last conversion. Which
    one that is may change with the next release, and the other is thrown away.

    ## What to do
    Remove the copy that is not meant from the checkpoint, or correct the conversion that sends both to one place.
    """

    code = "D508"
    name = "conversion-ambiguous"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.PLAN,)
    tags = (READ_FILES,)

    noun = "name"

    def subjects(self, facts: Facts) -> Iterator[_Name]:
        """Every live tensor, what else has a remark, and every stored key that is a module of others as well."""
        plan = facts.require(Section.PLAN)
        remarks: dict[str, list[LoadRemark]] = {}
        for remark in plan.remarks:
            if remark.kind in _KINDS:
                remarks.setdefault(remark.name, []).append(remark)
        for tensor in plan.tensors:
            yield _Name(tensor.name, remarks.pop(tensor.name, ()) if remarks else ())
        for name, about in remarks.items():
            yield _Name(name, about)
        if facts.checkpoint is not None and facts.checkpoint.format != "dcp":  # which nests whatever it is given
            for short, long in _nested(list(map(attrgetter("key"), facts.checkpoint.entries))):
                yield _Name(short, (), long)

    def judge(self, subject: _Name, facts: Facts) -> Iterable[Finding]:
        if not subject.remarks and not subject.inside:
            return ()
        return self._judged(subject, facts)

    def _judged(self, subject: _Name, facts: Facts) -> Iterator[Finding]:
        for remark in subject.remarks:
            yield self.finding(
                subject=remark.name,
                kind=SubjectKind.PATTERN if remark.kind == "shared-pattern" else SubjectKind.TENSOR,
                message=f"{remark.name}: {_KINDS[remark.kind].format(side=side_of(facts))}: {remark.detail}",
                evidence={"kind": remark.kind, "keys": remark.keys[:50]},
                key=f"{remark.kind}:{','.join(remark.keys[:2])}",
            )
        if subject.inside:
            yield self.finding(
                subject=subject.name,
                kind=SubjectKind.KEY,
                message=f"{subject.name} is a stored tensor and also the name of a module that holds {subject.inside}",
                evidence={"kind": "nested-key", "keys": [subject.name, subject.inside]},
                key="nested-key",
            )


def _nested(names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each key that is the path of a module of another key, with the first such other key."""
    leaves = {name.rpartition(".")[2] for name in names}
    text = "\n".join(["", *names])
    if len(leaves) < 200 and not any(f".{leaf}." in text or f"\n{leaf}." in text for leaf in leaves):
        return  # no key goes on behind what ends another one
    keys = set(names)
    modules, nested = {key.rpartition(".")[0] for key in keys}, set()
    while modules:
        nested |= modules & keys
        modules = {module.rpartition(".")[0] for module in modules if "." in module}
    for short in sorted(nested):
        inside = (key for key in keys if key.startswith(f"{short}."))
        others = [key for key in inside if not set(key.split(".")) & set(_PARTS_OF_A_TENSOR)]
        if others:
            yield short, min(others)
