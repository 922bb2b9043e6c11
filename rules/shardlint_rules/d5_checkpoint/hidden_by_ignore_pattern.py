"""D518 hidden-by-ignore-pattern."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import LeftoverKey, TensorPlan
from shardlint.names import counted, pattern_of
from shardlint_rules._files import READ_FILES
from shardlint_rules._sides import side_of


@frozen
class _Hidden:
    """A pattern, the stored weights that it hides, and of these the ones that a live tensor wants, with the tensor."""

    name: str
    keys: Sequence[LeftoverKey]
    pairs: Sequence[tuple[LeftoverKey, TensorPlan]]


class HiddenByIgnorePattern(Rule):
    """
    An ignore list of the model class hides stored keys that live tensors want.

    ## What it does
    Takes the keys that the class's `_keys_to_ignore_on_load_unexpected` keeps out of the load report and looks for live
    tensors without a source that have the same last names and the same shape: the weights are there, under a name
    that is not loaded. Whole weights that are hidden although nothing wants them are counted as information.

    ## Why it is unsafe
    The load report is empty, so everything looks loaded, and a block (multi-token prediction layers are the usual case)
    starts from random values.

    ## What to do
    Rename the keys to the live names, or load the block's weights yourself; if the block is not used, remove it.
    """

    code = "D518"
    name = "hidden-by-ignore-pattern"
    phase = Phase.D5
    severity = Severity.WARNING
    needs = (Section.PLAN,)
    tags = (READ_FILES,)

    noun = "ignore pattern"

    def subjects(self, facts: Facts) -> Iterator[_Hidden]:
        plan = facts.require(Section.PLAN)
        wanting: dict[tuple[str, tuple[int, ...]], list[TensorPlan]] = defaultdict(list)
        for tensor in plan.tensors:
            if tensor.status in ("missing", "missing-ignored"):
                wanting[_ending(tensor.name), tensor.shape].append(tensor)
        hidden: dict[str, list[LeftoverKey]] = defaultdict(list)
        for leftover in plan.leftovers:
            is_weight = (
                not leftover.dtype.startswith(("I", "U", "BOOL"))
                and len(leftover.shape) > 1
                and 0 not in leftover.shape
            )
            if leftover.reason == "ignored" and is_weight:
                hidden[leftover.pattern].append(leftover)
        for pattern, items in hidden.items():
            pairs = [
                (unused, tensors[0])
                for unused in items
                if (tensors := wanting.get((_ending(unused.key), unused.shape)))
            ]
            yield _Hidden(pattern, items, pairs)

    def judge(self, hidden: _Hidden, facts: Facts) -> Iterable[Finding]:
        return (self._wanted(facts, hidden) if hidden.pairs else self._unused(facts, hidden.name, hidden.keys),)

    def _wanted(self, facts: Facts, hidden: _Hidden) -> Finding:
        pairs, (leftover, tensor) = hidden.pairs, hidden.pairs[0]
        return self.finding(
            subject=hidden.name,
            kind=SubjectKind.PATTERN,
            message=f"the ignore pattern {hidden.name} hides {counted(len(hidden.keys), 'stored weight')}, of which "
            f"{len(pairs)} {'fits' if len(pairs) == 1 else 'fit'} {side_of(facts).tensors} without a source: "
            f"{leftover.key} fits {tensor.name}",
            evidence={
                "hidden": len(hidden.keys),
                "wanted": len(pairs),
                "keys": [leftover.key for leftover, _ in pairs][:50],
                "tensors": [tensor.name for _, tensor in pairs][:50],
            },
        )

    def _unused(self, facts: Facts, pattern: str, items: Sequence[LeftoverKey]) -> Finding:
        elements = sum(math.prod(leftover.shape) for leftover in items)
        names = sorted({pattern_of(leftover.key) for leftover in items})
        return self.finding(
            subject=pattern,
            kind=SubjectKind.PATTERN,
            severity=Severity.INFO,
            message=f"the ignore pattern {pattern} hides {counted(len(items), 'stored weight')} with "
            f"{counted(elements, 'element')}, which no {side_of(facts).tensor} wants: {', '.join(names[:3])}",
            evidence={"hidden": len(items), "elements": elements, "patterns": names[:50]},
        )


def _ending(name: str) -> str:
    """The last two segments of a name that are not numbers."""
    return ".".join([part for part in name.split(".") if not part.isdigit()][-2:])
