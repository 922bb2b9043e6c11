"""The parts of a report that come straight from the facts: metadata, coverage, collectors that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve

from ..diagnostics import describe_error, diagnostic, last_frame
from ..facts import EMPTY, CheckpointFacts, ContractFacts, Facts, FrozenDict, ModelFacts, RankDifference
from ..names import ranges
from ..rule import Finding, SubjectKind

if TYPE_CHECKING:
    from ..plugins.registry import Registry

_SHOWN, _LISTED = 4, 50  # differences that a message spells out, and that evidence keeps


def metadata_of(facts: Facts, registry: Registry, settings: FrozenDict = EMPTY) -> FrozenDict:
    """What was linted and with what: model, checkpoint, settings, packs, versions, place in the job."""
    environment = facts.environment
    return FrozenDict(
        {
            "model": _model(facts.model) if facts.model else None,
            "checkpoint": _checkpoint(facts.checkpoint) if facts.checkpoint else None,
            "contract": _contract(facts.contract) if facts.contract else None,
            "settings": settings,
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


def coverage_mapping(facts: Facts) -> FrozenDict | None:
    """
    What became of every live and every stored key (`shardlint.analysis.coverage.coverage_of`), as plain values.

    None without a model and without a checkpoint. A `reason` stands in it when there is a checkpoint that could be
    compared with nothing.
    """
    from ..analysis.coverage import CoverageStatus, coverage_of

    if facts.model is None and facts.checkpoint is None:
        return None
    coverage = coverage_of(facts)
    unknown = coverage.status is CoverageStatus.NOT_LOADED and facts.checkpoint is not None
    return FrozenDict({**coverage.as_mapping(), **({"reason": coverage.reason} if unknown else {})})


def guarded_coverage(facts: Facts) -> tuple[FrozenDict | None, tuple[Finding, ...]]:
    """The coverage; when it cannot be told for an error, SL002 in its place: what the rules found is kept."""
    try:
        return coverage_mapping(facts), ()
    except Exception as error:
        what = describe_error(error)
        finding = diagnostic(
            "SL002",
            subject="shardlint",
            kind=SubjectKind.PACK,
            message=f"pack shardlint: the coverage of the checkpoint could not be told: {what}",
            evidence={"collector": "coverage", "section": "coverage", "frame": last_frame(error)},
            key="coverage",
        )
        return None, (finding,)


def job_findings(facts: Facts) -> tuple[Finding, ...]:
    """SL010 for the ranks of each way in which ranks were asked for different things."""
    asked: dict[tuple[tuple[int, ...], int], list[RankDifference]] = {}
    for difference in facts.ranks.asked if facts.ranks is not None else ():
        asked.setdefault((difference.ranks, difference.reference_rank), []).append(difference)
    return tuple(_asked(ranks, reference, differences) for (ranks, reference), differences in asked.items())


def _asked(ranks: tuple[int, ...], reference: int, differences: list[RankDifference]) -> Finding:
    named = f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"
    parts = [_part(item) for item in differences]
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    finding = diagnostic(
        "SL010",
        subject=named,
        kind=SubjectKind.RANK,
        message=f"{named} asked for something else than rank {reference}: {', '.join(parts[:_SHOWN])}{more}",
        evidence={item.fqn: (item.reference, item.value) for item in differences[:_LISTED]},
    )
    return evolve(finding, ranks=ranks)


def _part(difference: RankDifference) -> str:
    if difference.field != "present":
        return f"{difference.fqn} ({difference.value} instead of {difference.reference})"
    return f"{difference.fqn} ({'left out' if difference.value == 'absent' else 'only there'})"


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
