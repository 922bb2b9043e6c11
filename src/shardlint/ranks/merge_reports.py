"""
One report out of those of several ranks: a finding names the ranks that it concerns, and the worst verdict holds.

Nothing here talks to other ranks; see `shardlint.ranks.store`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from attrs import evolve, frozen

from ..engine.runner import Hindrance, Outcome, Status, sort_findings
from ..engine.suppressions import SuppressedFinding
from ..facts import FrozenDict
from ..facts.codec import decode_hook, encode_hook
from ..report.model import Report, verdict_of
from ..rule import Finding

_WORSE = (
    Status.CRASHED,
    Status.BLOCKED,
    Status.NOT_EVALUATED,
    Status.FOUND,
    Status.LEFT_OUT,
    Status.CLEAN,
    Status.NOTHING,  # what is there on one rank only (a pipeline stage) was judged by the job
)


@frozen(kw_only=True)
class RanksReport:
    """The report that some ranks agree on."""

    ranks: tuple[int, ...]
    report: Report


def encode_report(report: Report) -> str:
    """The report as one line of JSON."""
    return msgspec.json.encode(report, enc_hook=encode_hook).decode()


def decode_report(text: str) -> Report:
    """The report that the JSON holds. Raises `msgspec.ValidationError` with the path of what is wrong."""
    return msgspec.json.decode(text, type=Report, dec_hook=decode_hook)


def digest_source(report: Report) -> str:
    """What two ranks must share to be of one opinion: everything but times, and which rank of the job it is."""
    still = tuple(evolve(outcome, seconds=0.0) for outcome in report.outcomes)
    metadata = FrozenDict({name: value for name, value in report.metadata.items() if name != "rank"})
    return encode_report(evolve(report, seconds=0.0, outcomes=still, metadata=metadata))


def hindered(said: Sequence[Mapping[str, Hindrance]]) -> dict[str, Hindrance]:
    """Why each heavy rule cannot run on every rank, by code, given what each rank says of those that it is to run."""
    result: dict[str, Hindrance] = {}
    for code in dict.fromkeys(code for hindrances in said for code in hindrances):
        for rank, hindrances in enumerate(said):
            hindrance = hindrances.get(code, Hindrance(Status.NOT_EVALUATED, "it was not asked to run the rule"))
            if hindrance.status is not None:
                result[code] = evolve(hindrance, reason=f"rank {rank}: {hindrance.reason}")
                break
    return result


def merge(reports: Sequence[RanksReport], world_size: int) -> Report:
    """
    Join reports, that of the lowest rank first.

    A finding that every rank has concerns every rank (no ranks named); else its ranks are named. The same rule,
    subject and key are one finding, with the words of the lowest rank that has it.
    """
    first = min(reports, key=lambda item: item.ranks).report
    findings = tuple(sort_findings(_findings(((item.ranks, item.report.findings) for item in reports), world_size)))
    hidden = _suppressed(reports, world_size)
    blocked = tuple(
        dict.fromkeys(
            reason if reason in first.blocked_by else f"rank {item.ranks[0]}: {reason}"
            for item in reports
            for reason in item.report.blocked_by
        )
    )
    return evolve(
        first,
        findings=findings,
        suppressed=hidden,
        outcomes=_outcomes(reports, findings),
        blocked_by=blocked,
        verdict=verdict_of(findings, blocked, first.fail_level),
        metadata=FrozenDict({**first.metadata, "ranks": world_size}),
    )


def _findings(found: Iterable[tuple[tuple[int, ...], Iterable[Finding]]], world_size: int) -> Iterable[Finding]:
    known: dict[tuple[str, str, str, str], tuple[Finding, set[int]]] = {}
    for ranks, findings in found:
        for finding in findings:
            key = (finding.code, finding.subject, finding.key, finding.severity.value)
            known.setdefault(key, (finding, set()))[1].update(ranks)
    for finding, ranks_of_it in known.values():
        if finding.ranks or len(ranks_of_it) == world_size:  # a finding that names ranks itself knows better
            yield evolve(finding, ranks=tuple(sorted(set(finding.ranks))))
        else:
            yield evolve(finding, ranks=tuple(sorted(ranks_of_it)))


def _suppressed(reports: Sequence[RanksReport], world_size: int) -> tuple[SuppressedFinding, ...]:
    reasons = {
        (item.finding.code, item.finding.subject, item.finding.key): item
        for report in reversed(reports)
        for item in report.report.suppressed
    }
    found = _findings(
        ((item.ranks, [hidden.finding for hidden in item.report.suppressed]) for item in reports), world_size
    )
    return tuple(
        evolve(reasons[finding.code, finding.subject, finding.key], finding=finding) for finding in sort_findings(found)
    )


def _outcomes(reports: Sequence[RanksReport], findings: Sequence[Finding]) -> tuple[Outcome, ...]:
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.code] = counts.get(finding.code, 0) + 1
    known: dict[str, tuple[Outcome, int]] = {}
    for report in reports:
        for outcome in _of_rank(report, reports):
            before = known.get(outcome.code)
            if before is None or _WORSE.index(outcome.status) < _WORSE.index(before[0].status):
                known[outcome.code] = (outcome, report.ranks[0])
    return tuple(
        evolve(outcome, findings=counts.get(outcome.code, outcome.findings), reason=_reason(outcome, rank))
        for outcome, rank in known.values()
    )


def _reason(outcome: Outcome, rank: int) -> str:
    """The reason, with the rank that gives it; what the ranks agreed on names its rank already."""
    named = not outcome.reason or outcome.reason.startswith("rank ")
    return outcome.reason if named or not rank else f"rank {rank}: {outcome.reason}"


def _of_rank(report: RanksReport, reports: Sequence[RanksReport]) -> Iterator[Outcome]:
    """
    The outcomes of a report, and those that other ranks have and it does not: such a rule is not clean for the job.
    """
    own = {outcome.code for outcome in report.report.outcomes}
    yield from report.report.outcomes
    for other in reports:
        for outcome in other.report.outcomes:
            if outcome.code not in own:
                own.add(outcome.code)
                yield evolve(outcome, status=Status.LEFT_OUT, findings=0, judged=0, reason="it left this rule out")
