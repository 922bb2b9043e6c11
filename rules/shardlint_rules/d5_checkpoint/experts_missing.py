"""D522 experts-missing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import CheckpointFacts, PlanFacts, TensorPlan
from shardlint.names import counted, ranges
from shardlint_rules._files import WHOLE_CHECKPOINT

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_EXPERTS = re.compile(r"experts(\.|$)")
_EXPERT = re.compile(r"experts\.\d+\.")


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        checkpoint = facts.require(Section.CHECKPOINT)
        plan = facts.require(Section.PLAN)
        for remark in plan.remarks:
            if remark.kind == "numbering":
                yield self.finding(
                    subject=remark.name,
                    message=f"the sources of {remark.name}: {remark.detail}",
                    evidence={"keys": remark.keys[:50]},
                    key=remark.keys[0],
                )
        yield from self._too_few(plan)
        yield from self._gaps(plan)
        yield from self._renumbered(checkpoint)

    def _too_few(self, plan: PlanFacts) -> Iterator[Finding]:
        for tensor in plan.tensors:
            stored = tensor.converted_shape
            if tensor.status != "mismatched" or not tensor.operations or not stored or len(tensor.shape) < 2:
                continue
            if stored[1:] == tensor.shape[1:] and stored[0] < tensor.shape[0] and _EXPERTS.search(tensor.name):
                live_count = counted(tensor.shape[0], "expert")
                yield self.finding(
                    subject=tensor.name,
                    message=f"{tensor.name} has {live_count}, {stored[0]} {'is' if stored[0] == 1 else 'are'} stored",
                    evidence={"stored": stored[0], "live": tensor.shape[0], "keys": tensor.sources[:50]},
                    key="count",
                )

    def _gaps(self, plan: PlanFacts) -> Iterator[Finding]:
        """Yield a finding for every list of modules of which some numbers have no source at all."""
        if not any(tensor.status == "missing" for tensor in plan.tensors):
            return
        filled: dict[str, set[int]] = defaultdict(set)
        empty: dict[str, dict[int, str]] = defaultdict(dict)
        for tensor in plan.tensors:
            for place, number in _places(tensor):
                if tensor.status == "missing":
                    empty[place].setdefault(number, tensor.name)
                else:
                    filled[place].add(number)
        for place, indices in empty.items():
            lost = sorted(set(indices) - filled[place])
            if lost and filled[place]:
                yield self.finding(
                    subject=place.replace("*", str(lost[0]), 1),
                    kind=SubjectKind.MODULE,
                    message=f"{place}: numbers {ranges(filled[place])} are stored, {ranges(lost)} are not",
                    evidence={"stored": sorted(filled[place])[:50], "absent": lost[:50], "example": indices[lost[0]]},
                    key="gap",
                )

    def _renumbered(self, checkpoint: CheckpointFacts) -> Iterator[Finding]:
        files: dict[str, set[str]] = defaultdict(set)
        keys: dict[str, list[str]] = defaultdict(list)
        for repeated_key in checkpoint.repeated_keys:
            match = _EXPERT.search(repeated_key.key)
            if match is not None and repeated_key.counts and repeated_key.equal is not True:
                place = repeated_key.key[: match.start()] + "experts"
                files[place].update((repeated_key.file, repeated_key.other_file))
                keys[place].append(repeated_key.key)
        for place, names in files.items():
            yield self.finding(
                subject=place,
                kind=SubjectKind.MODULE,
                message=f"{place}: {len(names)} files hold experts of the same numbers ({', '.join(_few(names))}): "
                "each numbered its own from zero, and only those of the last file are loaded",
                evidence={"files": sorted(names)[:50], "keys": keys[place][:50]},
                key="renumbered",
            )


def _places(tensor: TensorPlan) -> Iterator[tuple[str, int]]:
    """Yield each numbered place of a name, as the path up to its number, with the number."""
    for match in _NUMBER.finditer(tensor.name):
        if match.end() - match.start() < 10:
            yield tensor.name[: match.start()] + "*", int(match.group())


def _few(names: set[str]) -> Sequence[str]:
    return sorted(names)[:3]
