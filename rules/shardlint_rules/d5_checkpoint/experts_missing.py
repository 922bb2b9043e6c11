"""D522 experts-missing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from attrs import field, frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import CheckpointFacts, LoadRemark, PlanFacts, TensorPlan, known
from shardlint.names import counted, ranges
from shardlint_rules._files import WHOLE_CHECKPOINT

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_EXPERTS = re.compile(r"experts(\.|$)")
_EXPERT = re.compile(r"experts\.\d+\.")


@frozen
class _Gap:
    """A list of modules: the numbers that have sources, and those of tensors without one, with an example."""

    name: str
    filled: set[int]
    empty: dict[int, str]


@frozen
class _Renumbered:
    """Experts of which several files hold the same numbers with other bytes."""

    name: str
    files: set[str] = field(factory=set)
    keys: list[str] = field(factory=list)


class ExpertsMissing(Rule):
    """
    Fewer experts or layers are stored than the model has, or experts are renumbered from zero.

    ## What it does
    Groups the live tensors without a source by the number in their names: where other numbers of the same tensor are
    stored, names those that are not. For experts that are stored one by one and loaded into one tensor, reports
    numbers that do not run from zero without a gap, and counts that do not fill the tensor. Reports expert keys that
    stand in several files with different values: every rank numbered its own experts from zero. Layers that the
    contract excludes are not reported.

    ## Why it is unsafe
    Loaders take the experts in order and ignore their numbers: experts 1..4 load as 0..3 silently, and the router
    sends every token to the wrong one.

    ## What to do
    Save again with global expert numbers, from all ranks; or correct the number of layers or experts in the config.
    """

    code = "D522"
    name = "experts-missing"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.CHECKPOINT, Section.PLAN)
    tags = (WHOLE_CHECKPOINT,)
    related_config = ("num_experts", "num_hidden_layers")

    noun = "numbered name"

    def subjects(self, facts: Facts) -> Iterator[TensorPlan | LoadRemark | _Gap | _Renumbered]:
        """Live tensors of layers and experts, lists of modules with empty numbers, and experts that stand twice."""
        plan = facts.require(Section.PLAN)
        yield from (remark for remark in plan.remarks if remark.kind == "numbering")
        yield from (tensor for tensor in plan.tensors if _NUMBER.search(tensor.name) or _EXPERTS.search(tensor.name))
        yield from _gaps(plan)
        yield from _renumbered(facts.require(Section.CHECKPOINT))

    def judge(self, subject: TensorPlan | LoadRemark | _Gap | _Renumbered, facts: Facts) -> Iterable[Finding]:
        if isinstance(subject, TensorPlan):
            return self._too_few(subject) if subject.status == "mismatched" else ()
        if isinstance(subject, _Gap):
            return self._gap(subject)
        return (self._twice(subject) if isinstance(subject, _Renumbered) else self._remark(subject),)

    def _remark(self, remark: LoadRemark) -> Finding:
        return self.finding(
            subject=remark.name,
            message=f"the sources of {remark.name}: {remark.detail}",
            evidence={"keys": remark.keys[:50]},
            key=remark.keys[0],
        )

    def _too_few(self, tensor: TensorPlan) -> Iterator[Finding]:
        stored = known(tensor.converted_shape)
        if not tensor.operations or not stored or len(tensor.shape) < 2:
            return
        if stored[1:] == tensor.shape[1:] and stored[0] < tensor.shape[0] and _EXPERTS.search(tensor.name):
            live_count = counted(tensor.shape[0], "expert")
            yield self.finding(
                subject=tensor.name,
                message=f"{tensor.name} has {live_count}, {stored[0]} {'is' if stored[0] == 1 else 'are'} stored",
                evidence={"stored": stored[0], "live": tensor.shape[0], "keys": tensor.sources[:50]},
                key="count",
            )

    def _gap(self, gap: _Gap) -> Iterator[Finding]:
        lost = sorted(set(gap.empty) - gap.filled)
        if lost and gap.filled:
            yield self.finding(
                subject=gap.name.replace("*", str(lost[0]), 1),
                kind=SubjectKind.MODULE,
                message=f"{gap.name}: numbers {ranges(gap.filled)} are stored, {ranges(lost)} are not",
                evidence={"stored": sorted(gap.filled)[:50], "absent": lost[:50], "example": gap.empty[lost[0]]},
                key="gap",
            )

    def _twice(self, place: _Renumbered) -> Finding:
        return self.finding(
            subject=place.name,
            kind=SubjectKind.MODULE,
            message=f"{place.name}: {len(place.files)} files hold experts of the same numbers "
            f"({', '.join(sorted(place.files)[:3])}): "
            "each numbered its own from zero, and only those of the last file are loaded",
            evidence={"files": sorted(place.files)[:50], "keys": place.keys[:50]},
            key="renumbered",
        )


def _gaps(plan: PlanFacts) -> Iterator[_Gap]:
    """Every list of modules with numbers of which some tensor has no source."""
    if not any(tensor.status == "missing" for tensor in plan.tensors):
        return
    filled: dict[str, set[int]] = defaultdict(set)
    empty: dict[str, dict[int, str]] = defaultdict(dict)
    renamed = {name for cure in plan.cures for name in cure.names}  # they are stored, under other names
    for tensor in plan.tensors:
        for place, number in _places(tensor):
            if tensor.status == "missing" and tensor.name not in renamed:
                empty[place].setdefault(number, tensor.name)
            else:
                filled[place].add(number)
    yield from (_Gap(place, filled[place], indices) for place, indices in empty.items())


def _renumbered(checkpoint: CheckpointFacts) -> Iterable[_Renumbered]:
    found: dict[str, _Renumbered] = {}
    for repeated_key in checkpoint.repeated_keys:
        match = _EXPERT.search(repeated_key.key)
        if match is not None and repeated_key.counts and known(repeated_key.equal) is not True:
            name = repeated_key.key[: match.start()] + "experts"
            place = found.setdefault(name, _Renumbered(name))
            place.files.update((repeated_key.file, repeated_key.other_file))
            place.keys.append(repeated_key.key)
    return found.values()


def _places(tensor: TensorPlan) -> Iterator[tuple[str, int]]:
    """Yield each numbered place of a name, as the path up to its number, with the number."""
    for match in _NUMBER.finditer(tensor.name):
        if match.end() - match.start() < 10:
            yield tensor.name[: match.start()] + "*", int(match.group())
