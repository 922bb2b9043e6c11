"""The parts of a report that come straight from the facts: metadata, coverage, collectors that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..diagnostics import diagnostic
from ..facts import CheckpointFacts, ContractFacts, Facts, FrozenDict, ModelFacts, Section
from ..rule import Finding, SubjectKind

if TYPE_CHECKING:
    from ..plugins.registry import Registry


def metadata_of(facts: Facts, registry: Registry) -> FrozenDict:
    """What was linted and with what: model, checkpoint, packs, versions, place in the job."""
    environment = facts.environment
    return FrozenDict(
        {
            "model": _model(facts.model) if facts.model else None,
            "checkpoint": _checkpoint(facts.checkpoint) if facts.checkpoint else None,
            "contract": _contract(facts.contract) if facts.contract else None,
            "absent": facts.absent,
            "packs": {pack.name: pack.version for pack in registry.packs if pack.status.value == "loaded"},
            "versions": environment.versions,
            "rank": environment.rank,
            "world_size": environment.world_size,
            "facts_version": facts.version,
        }
    )


def _model(model: ModelFacts) -> dict[str, Any]:
    counts = model.counts
    return {
        "class": model.qualified_type,
        "model_type": model.model_type,
        "architectures": model.architectures,
        "modules": counts.modules,
        "parameters": counts.parameters,
        "buffers": counts.buffers,
        "parameter_elements": counts.parameter_elements,
    }


def _checkpoint(checkpoint: CheckpointFacts) -> dict[str, Any]:
    return {
        "path": checkpoint.path,
        "format": checkpoint.format,
        "files": len(checkpoint.files),
        "tensors": len(checkpoint.entries),
        "bytes": sum(file.size for file in checkpoint.files),
    }


def _contract(contract: ContractFacts) -> dict[str, Any]:
    return {"source": contract.source, "replaces": contract.replaces or None}


def coverage_of(facts: Facts) -> FrozenDict | None:
    """
    What became of every live and every stored key: by the load report, else by the load plan, else by the headers.

    Without a checkpoint the status is NOT_LOADED, or the result None when there is no model either. With a checkpoint
    that could be compared with nothing it is NOT_LOADED as well, and `reason` says why.
    """
    from ..analysis.coverage import (
        Coverage,
        CoverageStatus,
        coverage,
        planned_coverage,
        retained_report,
        stored_coverage,
    )
    from ..rule import NotEvaluated

    reported = coverage(facts)
    if facts.checkpoint is None or (retained_report(facts) is not None and reported is not None):
        return reported.as_mapping() if reported else None
    try:
        result = planned_coverage(facts) if facts.plan is not None else stored_coverage(facts)
    except NotEvaluated as error:
        reason = facts.why_absent(Section.PLAN) if facts.plan is None else str(error)
        unknown = Coverage(status=CoverageStatus.NOT_LOADED, basis="plan")
        return FrozenDict({**unknown.as_mapping(), "reason": reason})
    return result.as_mapping()


def collection_findings(facts: Facts) -> tuple[Finding, ...]:
    """SL002 for every collector that failed while the facts were collected."""
    return tuple(
        diagnostic(
            "SL002",
            subject=problem.pack or "shardlint",
            kind=SubjectKind.PACK,
            message=f"pack {problem.pack or 'shardlint'}: the collector {problem.collector} of the section "
            f"{problem.section} failed: {problem.error_type}: {problem.error}",
            evidence={"collector": problem.collector, "section": problem.section, "frame": problem.frame},
            key=f"{problem.section} {problem.collector}",
        )
        for problem in facts.problems
    )
