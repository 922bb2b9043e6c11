"""D524 another-architecture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from shardlint import WHOLE, Facts, Finding, FrozenDict, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.model_config import architectures_of, model_type_of
from shardlint.analysis.prefixes import prefix_change
from shardlint.facts import LeftoverKey, PlanFacts
from shardlint.names import listed
from shardlint_rules._files import WHOLE_CHECKPOINT

_FEW = 0.1


class AnotherArchitecture(Rule):
    """
    The checkpoint is of another architecture than the model: next to nothing of it fits.

    ## What it does
    When at most a tenth of the model's tensors have a source, at most a tenth of the stored keys have a place, and no
    single change of prefix would help, says so once, with the architectures that the two configurations name and how
    the names on either side begin, instead of every single key. When more of it fits, but both sides have names that
    the other lacks and their configurations name different model types, it says so as a warning, in addition to the
    keys.

    ## Why it is unsafe
    Loading it is not refused: a loader that is not strict starts the whole model from random values, and says so in one
    long line of names.

    ## What to do
    Point at the right folder, build the class that its `config.json` names, or convert the checkpoint and declare the
    new names in `checkpoint.renames`.
    """

    code = "D524"
    name = "another-architecture"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.PLAN,)
    tags = (WHOLE_CHECKPOINT,)
    blocks = ("D501",)
    related_config = ("checkpoint.renames",)

    noun = "load plan"

    def subjects(self, facts: Facts) -> Iterator[object]:
        if facts.require(Section.PLAN).tensors:
            yield WHOLE

    def judge(self, subject: object, facts: Facts) -> Iterator[Finding]:
        plan = facts.require(Section.PLAN)
        unexpected = [leftover for leftover in plan.leftovers if leftover.reason == "unexpected"]
        if plan.unread:
            raise NotEvaluated(f"no tensors could be read from {listed(plan.unread)}")
        if not unexpected:
            return
        missing = sum(tensor.status in ("missing", "error") for tensor in plan.tensors)
        if not missing:
            return
        used = len({key for tensor in plan.tensors for key in tensor.sources})
        few = missing >= (1 - _FEW) * len(plan.tensors) and len(unexpected) >= (1 - _FEW) * (len(unexpected) + used)
        if few and prefix_change(plan) is None and not plan.cures:
            yield self._finding(facts, plan, used, unexpected, Severity.ERROR)
        elif not few and _other_type(facts):
            yield self._finding(facts, plan, used, unexpected, Severity.WARNING)

    def _finding(
        self, facts: Facts, plan: PlanFacts, used: int, leftovers: list[LeftoverKey], severity: Severity
    ) -> Finding:
        unexpected = [leftover.renamed for leftover in leftovers]
        filled = sum(tensor.status in ("loaded", "tied") for tensor in plan.tensors)
        begin, wanted = _beginnings(unexpected), _beginnings(tensor.name for tensor in plan.tensors)
        return self.finding(
            subject=facts.checkpoint.path if facts.checkpoint else "checkpoint",
            kind=SubjectKind.FILE,
            severity=severity,
            message=f"{_difference(facts)}: {filled} of {len(plan.tensors)} tensors have a source, and "
            f"{len(unexpected)} of {len(unexpected) + used} stored keys have no place; these keys begin with {begin}, "
            f"the model's names with {wanted}",
            evidence={
                "model": _model_name(facts),
                "checkpoint": _stored_name(facts),
                "filled": filled,
                "tensors": len(plan.tensors),
                "unexpected": len(unexpected),
                "examples": unexpected[:5],
            },
        )


def _difference(facts: Facts) -> str:
    model, stored = _model_name(facts), _stored_name(facts)
    if facts.model is None:
        return f"the stored tensors are of another architecture than {model}, which config.json names"
    if stored and stored != model:
        return f"the checkpoint is of another architecture ({stored}) than the model ({model})"
    return f"the stored tensors are of another architecture than the model ({model})"


def _other_type(facts: Facts) -> bool:
    """Whether the two configurations name different model types, neither of which is a part of the other."""
    live = facts.model.config if facts.model else None
    stored = facts.checkpoint.config if facts.checkpoint else None
    if live is None or stored is None:
        return False
    ours, theirs = live.get("model_type"), stored.get("model_type")
    if not ours or not theirs:
        return False
    return theirs not in _types(live) and ours not in _types(stored)


def _types(config: FrozenDict) -> set[object]:
    parts = [value for value in config.values() if isinstance(value, FrozenDict)]
    return {config.get("model_type"), *(part.get("model_type") for part in parts)}


def _model_name(facts: Facts) -> str:
    named = facts.model.qualified_type if facts.model else facts.plan.architecture if facts.plan else ""
    return named.rpartition(".")[2]


def _stored_name(facts: Facts) -> str:
    """The architecture that the stored configuration names, empty when it names none."""
    config = facts.checkpoint.config if facts.checkpoint else None
    if config is None:
        return ""
    return next(iter(architectures_of(config)), "") or model_type_of(config)


def _beginnings(names: Iterable[str]) -> str:
    """`transformer. (148), lm_head. (1)`: the commonest first segments."""
    counts = Counter(name.partition(".")[0] for name in names)
    return ", ".join(f"{part}. ({count})" for part, count in counts.most_common(3)) or "nothing"
