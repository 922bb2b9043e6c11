"""D106 tie-flags-disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.coverage import retained_report
from shardlint.analysis.keys import KeyResolver, identity_reason
from shardlint.analysis.model_config import known_settings, model_configurations
from shardlint.analysis.ties import declared_ties
from shardlint.facts import ModelFacts, PartConfig, known
from shardlint.names import ROOT, below


class TieFlagsDisagree(Rule):
    """
    Nested configurations disagree about tied word embeddings, and the end that is not tied has no source.

    ## What it does
    Collects `tie_word_embeddings` from the configuration and the configurations inside it. Where they disagree, looks
    at each declared tie that is not real in the live model and asks whether both ends come from the checkpoint.

    ## Why it is unsafe
    The loader reads one flag and the class another: the head is neither tied nor loaded, so it keeps the random values
    that it was initialised with.

    ## What to do
    Give all flags the value that the checkpoint was trained with.
    """

    code = "D106"
    name = "tie-flags-disagree"
    phase = Phase.D1
    severity = Severity.ERROR
    needs = (Section.MODEL,)

    noun = "configuration"

    def subjects(self, facts: Facts) -> Iterator[tuple[PartConfig, dict[str, bool]]]:
        """Every configuration that gives several flags, and those that cannot be read."""
        for part in model_configurations(facts.require(Section.MODEL)):
            flags = dict(_flags(part.config))
            if len(flags) > 1 or part.unreadable:
                yield part, flags

    def judge(self, subject: tuple[PartConfig, dict[str, bool]], facts: Facts) -> Iterator[Finding]:
        part, flags = subject
        known_settings(part)
        if len(set(flags.values())) < 2:
            return
        model = facts.require(Section.MODEL)
        pairs = {target: source for target, source in _untied_pairs(model) if below(target, part.fqn)}
        without_source = _without_source(facts, model) if pairs else set()
        for target, source in pairs.items():
            lost = [name for name in (target, source) if name in without_source]
            if lost:
                said = ", ".join(f"{path} = {value}" for path, value in flags.items())
                yield self.finding(
                    subject=lost[0],
                    kind=SubjectKind.TENSOR,
                    message=f"{lost[0]} has no source in the checkpoint and is not tied to its partner, while the "
                    f"configurations disagree: {said}",
                    evidence={"flags": flags, "target": target, "source": source},
                )

    def subject_name(self, subject: tuple[PartConfig, dict[str, bool]]) -> str:
        return subject[0].fqn or ROOT


def _flags(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool]]:
    for key, value in config.items():
        if key == "tie_word_embeddings" and isinstance(known(value), bool):
            yield prefix + key, value
        elif isinstance(value, Mapping):
            yield from _flags(value, f"{prefix}{key}.")


def _untied_pairs(model: ModelFacts) -> Iterator[tuple[str, str]]:
    names = model.tensor_by_name()
    for tie in declared_ties(model):
        for target, source in tie.pairs:
            left, right = names[target], names[source]
            if left is not right and (left.storage is None or left.storage != right.storage):
                yield target, source


def _without_source(facts: Facts, model: ModelFacts) -> set[str]:
    """The live names that the checkpoint does not fill, from the load report, the plan, or else from headers."""
    report = retained_report(facts)
    if report is not None:
        return set(report.missing)
    if facts.plan is not None:
        return {tensor.name for tensor in facts.plan.tensors if tensor.status.startswith("missing")}
    if facts.checkpoint is None:
        raise NotEvaluated(
            f"whether both ends of the tie are stored is unknown: {facts.why_absent(Section.CHECKPOINT)}"
        )
    if reason := identity_reason(facts):
        raise NotEvaluated(reason)
    resolver = KeyResolver(model)
    return set(model.state_dict_keys()) - {resolver.live_name(entry.key) for entry in facts.checkpoint.entries}
