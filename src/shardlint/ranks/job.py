"""
Linting on every rank of a job: ranks compare their facts, and agree on one report and one exit status.

    job = Job.join(timeout=120)
    facts = job.share(facts) if job else facts
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from attrs import evolve, frozen

from ..engine.runner import Agree, Hindrance
from ..facts import EMPTY, Facts, FrozenDict, Section
from ..report.model import Report
from .merge_reports import RanksReport, decode_report, digest_source, encode_report, hindered, merge

if TYPE_CHECKING:
    from ..target import LiveTarget
    from .converse import Ask
    from .store import RankPlace

_ALIKE = ""
"""What rank 0 says instead of a report that every rank has."""

DEFAULT_TIMEOUT = 120.0
"""Seconds that a rank waits for the others."""


@frozen
class Job:
    """The job that this process is a rank of. Every rank must call the same methods in the same order."""

    place: RankPlace
    timeout: float = DEFAULT_TIMEOUT

    @classmethod
    def join(cls, timeout: float = DEFAULT_TIMEOUT) -> Job | None:
        """
        The job of this process; None when it is alone, or when `timeout` is 0: then each rank lints for itself.

        Raises `JobError` when there is a job that cannot be joined.
        """
        from .store import place_in_job

        place = place_in_job(timeout) if timeout > 0 else None
        return None if place is None else cls(place, timeout)

    def share(self, facts: Facts, asked: Mapping[str, str] = EMPTY) -> Facts:
        """
        The facts with what the ranks do not agree about. Raises `JobError` as `agree` does.

        Each rank keeps its own facts; what is compared are digests first, and rows only where those differ. `asked`
        says what this rank was asked to do, as texts by name.
        """
        from .compare import compare_ranks

        place = self.place
        return evolve(
            facts,
            ranks=compare_ranks(place, facts, self.timeout, asked),
            environment=evolve(facts.environment, rank=place.rank, world_size=place.world_size),
            absent=FrozenDict({name: why for name, why in facts.absent.items() if name != Section.RANKS.value}),
        )

    def agree_on_heavy(self, hindrances: dict[str, Hindrance]) -> dict[str, Hindrance]:
        """
        What hinders each heavy rule on some rank, by code, given what hinders it on this one.

        Raises `JobError` as `agree` does.
        """
        from .converse import converse

        def lead(messages: list[str], _ask: Ask) -> str:
            said = [msgspec.json.decode(text, type=dict[str, Hindrance]) for text in messages]
            return msgspec.json.encode(hindered(said)).decode()

        message = msgspec.json.encode(hindrances).decode()
        answer = converse(self.place, message, lead=lead, answer=lambda _: "", timeout=self.timeout)
        return msgspec.json.decode(answer, type=dict[str, Hindrance])

    def agree(self, report: Report) -> Report:
        """
        One report for the job, the same on every rank: findings name the ranks that they concern.

        Raises `JobError` when a rank failed, died or did not come in time.
        """
        from .converse import converse

        own = encode_report(report)
        digest = hashlib.blake2b(digest_source(report).encode(), digest_size=16).hexdigest()

        def lead(digests: list[str], ask: Ask) -> str:
            alike: dict[str, list[int]] = {}
            for rank, said in enumerate(digests):
                alike.setdefault(said, []).append(rank)
            if len(alike) == 1:
                return _ALIKE
            others = [ranks[0] for ranks in alike.values() if ranks[0] != 0]
            texts = {0: own} | (ask(others, "report") if others else {})
            reports = [
                RanksReport(ranks=tuple(ranks), report=decode_report(texts[ranks[0]])) for ranks in alike.values()
            ]
            return encode_report(merge(reports, self.place.world_size))

        answer = converse(self.place, digest, lead=lead, answer=lambda _: own, timeout=self.timeout, last=True)
        return decode_report(answer) if answer != _ALIKE else self.shared(report)

    def shared(self, report: Report) -> Report:
        """The report of the job when every rank has the same one: as rank 0's would be, but for times."""
        metadata = dict(report.metadata)
        if "rank" in metadata:
            metadata["rank"] = 0
        ranks = tuple(range(self.place.world_size))
        mine = evolve(report, metadata=FrozenDict(metadata))
        return merge([RanksReport(ranks=ranks, report=mine)], self.place.world_size)

    def meet(self) -> None:
        """Return once every rank is here. Raises `JobError` as `agree` does."""
        from .converse import converse

        converse(
            self.place, "here", lead=lambda _said, _ask: "all", answer=lambda _: "", timeout=self.timeout, last=True
        )


@frozen
class JobReport:
    """The report of the job, the same on every rank; `leads` tells whether this rank is the one that shows it."""

    report: Report
    leads: bool
    job: Job | None = None

    def show(self, write: Callable[[], None]) -> None:
        """
        Let the leading rank write the report; the others return when it has.

        A rank that left earlier with an exit status of its own would make the launcher end the one that writes.
        """
        if self.leads:
            with telling_others(self.job.timeout if self.job else 0.0):
                write()
        if self.job is not None:
            self.job.meet()


def lint_in_job(
    collect: Callable[[], tuple[Facts, LiveTarget | None]],
    judge: Callable[[Facts, LiveTarget | None, Agree | None], Report],
    timeout: float = DEFAULT_TIMEOUT,
    *,
    asked: Mapping[str, str] = EMPTY,
) -> JobReport:
    """
    Collect and judge on this rank, compare with the others, and agree on one report; alone, just collect and judge.

    `asked` says what this rank was asked to do: ranks that were asked for different things say so. `judge` is given
    the function by which ranks agree which heavy rules run, None when this rank is alone.

    What `collect` or `judge` raises is raised here and ends the other ranks with a `JobError` that says it.
    """
    with telling_others(timeout):
        facts, live = collect()
    job = Job.join(timeout)
    if job is None:
        return JobReport(judge(facts, live, None), True)
    facts = job.share(facts, asked)
    with telling_others(timeout):
        report = judge(facts, live, job.agree_on_heavy)
    return JobReport(job.agree(report), job.place.rank == 0, job)


@contextlib.contextmanager
def telling_others(timeout: float = DEFAULT_TIMEOUT) -> Iterator[None]:
    """Run a block; when it raises, tell the other ranks, so that they end with this error instead of waiting."""
    try:
        yield
    except BaseException as error:
        from .converse import fail
        from .store import JobError, place_in_job

        if timeout > 0 and not isinstance(error, JobError):
            with contextlib.suppress(Exception):  # the block's own error must get out, whatever the store does
                place = place_in_job(min(timeout, 5.0))
                if place is not None:
                    fail(place, error)
        raise
