"""Which evidence decides the coverage of a run: the retained load report, else the load plan, else the headers."""

from __future__ import annotations

import weakref

from attrs import evolve

from ...facts import (
    CheckpointFacts,
    Facts,
    LoadFacts,
    ModelCounts,
    ModelFacts,
    PlanFacts,
    Section,
    TensorFacts,
)
from ...rule import NotEvaluated
from ..keys import KeyResolver, identity_reason, unread_files
from .classify import classified, with_status
from .evidence import HeaderEvidence, PlanEvidence, ReportEvidence
from .model import Coverage, CoverageStatus, SourceClass

_kept: dict[int, tuple[weakref.ref[Facts], Coverage]] = {}  # by identity: facts are too large to be compared


def coverage_of(facts: Facts) -> Coverage:
    """
    Return the coverage of the run, judged once for the same facts: rules and report take the same object.

    The retained load report decides where there is one, else the load plan, else the headers of a checkpoint whose
    keys are the live names. Where there is nothing to compare the status is NOT_LOADED and `reason` says why.
    """
    number = id(facts)
    kept = _kept.get(number)
    if kept is not None and kept[0]() is facts:
        return kept[1]
    coverage = _of_job(_decided(facts), facts)
    _kept[number] = (weakref.ref(facts, lambda _: _kept.pop(number, None)), coverage)
    return coverage


def _of_job(coverage: Coverage, facts: Facts) -> Coverage:
    """The coverage with what other ranks take counted as taken: a stage of a pipeline needs a part of the keys."""
    unwanted = facts.ranks.unwanted_on(facts.environment.rank) if facts.ranks is not None else None
    if unwanted is None:
        return coverage
    sources = {key: kind if key in unwanted else SourceClass.OTHER_RANK for key, kind in coverage.sources.items()}
    return with_status(evolve(coverage, sources=sources))


def _decided(facts: Facts) -> Coverage:
    report = retained_report(facts)
    if report is not None and facts.model is not None:
        evidence = ReportEvidence(facts.model, report)
        return classified(facts, facts.model, evidence, "load-report", report.unexpected)
    try:
        return planned_coverage(facts) if facts.plan is not None else stored_coverage(facts)
    except NotEvaluated as error:
        return _unknown(facts, str(error))


def _unknown(facts: Facts, reason: str) -> Coverage:
    if facts.checkpoint is None and facts.plan is None:
        reason = f"no load report was retained; {facts.why_absent(Section.CHECKPOINT)} (coverage is NOT_LOADED)"
        return Coverage(status=CoverageStatus.NOT_LOADED, basis="load-report", reason=reason)
    if facts.model is None and facts.plan is None:
        reason = facts.why_absent(Section.MODEL)
    if facts.plan is None and Section.PLAN.value in facts.absent:
        reason = f"{facts.why_absent(Section.PLAN)}; {reason}"
    return Coverage(status=CoverageStatus.NOT_LOADED, basis="plan", reason=reason)


def retained_report(facts: Facts) -> LoadFacts | None:
    """Return the load report that somebody retained; None when at most the recorded conversions are known."""
    return facts.load if facts.load is not None and facts.load.reported else None


def stored_coverage(facts: Facts) -> Coverage:
    """
    Return the coverage that the headers of the checkpoint show.

    Raises `NotEvaluated` where stored keys and live names cannot be compared one by one, and where files that count
    could not be read.
    """
    reason = identity_reason(facts)
    if reason or facts.model is None or facts.checkpoint is None:
        raise NotEvaluated(reason or "no model or no checkpoint to compare")
    if unread := unread_files(facts.checkpoint):
        raise NotEvaluated(f"no header could be read of {', '.join(unread[:3])}")
    resolver = KeyResolver(facts.model)
    filled: set[str] = set()
    placeless: list[str] = []
    for entry in facts.checkpoint.entries:
        name = resolver.live_name(entry.key)
        if name is None:
            placeless.append(entry.key)
        else:
            filled.add(name)
    return classified(facts, facts.model, HeaderEvidence(filled), "headers", placeless)


def planned_coverage(facts: Facts) -> Coverage:
    """
    Return the coverage that the load plan shows, with or without a live model.

    Raises `NotEvaluated` without a plan, and where files that count could not be read.
    """
    plan = facts.plan
    if plan is None:
        raise NotEvaluated(facts.why_absent(Section.PLAN))
    if plan.unread:
        raise NotEvaluated(f"no header could be read of {', '.join(plan.unread[:3])}")
    model = facts.model or _planned_model(plan, facts.checkpoint)
    leftovers = {leftover.key: leftover for leftover in plan.leftovers}
    open_keys = [key for key, item in leftovers.items() if item.reason == "unexpected"]
    found = classified(facts, model, PlanEvidence(plan), "plan", open_keys)
    settled = {key: _SETTLED[item.reason] for key, item in leftovers.items() if item.reason in _SETTLED}
    return evolve(found, sources={key: settled.get(key) or found.sources[key] for key in leftovers})


_SETTLED = {
    "ignored": SourceClass.IGNORED_BY_CLASS,
    "excluded": SourceClass.INFERENCE_ONLY_EXCLUSION,
    "non-persistent": SourceClass.DERIVED_BUFFER,
    "derived": SourceClass.DERIVED_BUFFER,
    "other-state": SourceClass.OTHER_STATE,
}


def _planned_model(plan: PlanFacts, checkpoint: CheckpointFacts | None) -> ModelFacts:
    """Return what the plan knows of the architecture, as the facts of a model."""
    tensors = tuple(
        TensorFacts(
            fqn=tensor.name,
            aliases=(tensor.name,),
            kind="parameter",
            shape=tensor.shape,
            dtype=tensor.dtype,
            device="meta",
            requires_grad=False,
            is_meta=True,
        )
        for tensor in plan.tensors
    )
    return ModelFacts(
        qualified_type=plan.architecture,
        tensors=tensors,
        config=checkpoint.config if checkpoint else None,
        counts=ModelCounts(modules=0, parameters=len(tensors), buffers=0, parameter_elements=0),
    )
