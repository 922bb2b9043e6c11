"""The parts of a report that come straight from the facts: metadata, coverage, collectors that failed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .diagnostics import diagnostic
from .facts import CheckpointFacts, ContractFacts, Facts, FrozenDict, ModelFacts
from .rule import Finding, SubjectKind

if TYPE_CHECKING:
    from .plugins.registry import Registry


def metadata_of(facts: Facts, registry: Registry) -> FrozenDict:
    """What was linted and with what: model, checkpoint, packs, versions, place in the job."""
    environment = facts.environment
    return FrozenDict(
        {
            "model": _model(facts.model) if facts.model else None,
            "checkpoint": _checkpoint(facts.checkpoint) if facts.checkpoint else None,
            "contract": _contract(facts.contract) if facts.contract else None,
            "absent": facts.absent,
            "packs": {item.name: item.version for item in registry.packs if item.status.value == "loaded"},
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
        "bytes": sum(item.size for item in checkpoint.files),
    }


def _contract(contract: ContractFacts) -> dict[str, Any]:
    return {"source": contract.source, "replaces": contract.replaces or None}


def coverage_of(facts: Facts) -> FrozenDict | None:
    """
    What became of every live and every stored key: by the load report, else by the load plan, else by the headers.

    None without a model and a plan; the status NOT_LOADED where there is nothing to compare it with.
    """
    from .coverage import CoverageStatus, coverage, planned_coverage, stored_coverage
    from .rule import NotEvaluated

    if facts.load is None and facts.plan is not None:
        with suppress(NotEvaluated):
            return planned_coverage(facts).as_mapping()
    reported = coverage(facts)
    if reported is None:
        return None
    if reported.status is CoverageStatus.NOT_LOADED and facts.checkpoint is not None:
        try:
            return stored_coverage(facts).as_mapping()
        except NotEvaluated:
            return reported.as_mapping()
    return reported.as_mapping()


def collection_findings(facts: Facts) -> tuple[Finding, ...]:
    """SL002 for every collector that failed while the facts were collected."""
    return tuple(
        diagnostic(
            "SL002",
            subject=item.pack or "shardlint",
            kind=SubjectKind.PACK,
            message=f"pack {item.pack or 'shardlint'}: the collector {item.collector} of the section {item.section} "
            f"failed: {item.error_type}: {item.error}",
            evidence={"collector": item.collector, "section": item.section, "frame": item.frame},
            key=f"{item.section} {item.collector}",
        )
        for item in facts.problems
    )
