"""Ranks that agree on one report and one exit status, and leave together."""

import threading

from attrs import evolve

from shardlint.engine.runner import Hindrance, Outcome, Status
from shardlint.facts import FrozenDict
from shardlint.ranks.job import Job, JobReport
from shardlint.ranks.store import JobError
from shardlint.report.model import Report, Verdict
from shardlint.rule import Finding, Phase, Severity, SubjectKind
from support.rank_threads import run_ranks


def finding(subject, message="wrong"):
    return Finding(
        code="D304",
        name="unmanaged-trainable-parameter",
        phase=Phase.D3,
        severity=Severity.ERROR,
        subject=subject,
        kind=SubjectKind.TENSOR,
        message=message,
        evidence={"a": (1, 2)},
        why="w",
        remediation="r",
    )


def report(*findings, status=Status.CLEAN, reason="", blocked=()):
    outcome = Outcome(code="D304", name="x", phase=Phase.D3, status=status, reason=reason, seconds=0.1)
    verdict = Verdict.BLOCKED if blocked else Verdict.FAIL if findings else Verdict.PASS
    return Report(verdict=verdict, findings=findings, outcomes=(outcome,), blocked_by=blocked, metadata=FrozenDict(a=1))


def test_reports_become_one_whose_findings_name_their_ranks():
    def agree(place):
        here = [finding("shared", f"seen on {place.rank}")]
        if place.rank == 2:
            here.append(finding("mine"))
        return Job(place, 5.0).agree(report(*here, status=Status.FOUND))

    results = run_ranks(4, agree)
    assert len({results[rank][0] for rank in range(4)}) == 1
    joint = results[3][0]
    assert [(item.subject, item.ranks, item.message) for item in joint.findings] == [
        ("mine", (2,), "wrong"),
        ("shared", (), "seen on 0"),
    ]
    assert joint.exit_status == 1
    assert joint.outcomes[0].findings == 2


def test_one_rank_that_fails_gives_every_rank_its_exit_status():
    joint = run_ranks(4, lambda place: Job(place, 5.0).agree(report(*([finding("x")] if place.rank == 3 else []))))
    assert [joint[rank][0].exit_status for rank in range(4)] == [1] * 4


def test_a_rule_that_one_rank_could_not_evaluate_is_no_clean_rule():
    def agree(place):
        lost = place.rank == 1
        status = Status.NOT_EVALUATED if lost else Status.CLEAN
        mine = report(status=status, reason="no mesh" if lost else "", blocked=("not trusted",) if lost else ())
        return Job(place, 5.0).agree(mine)

    joint = run_ranks(2, agree)[0][0]
    assert joint.outcomes[0].status is Status.NOT_EVALUATED
    assert joint.outcomes[0].reason == "rank 1: no mesh"
    assert joint.blocked_by == ("rank 1: not trusted",)
    assert joint.exit_status == 2


def test_no_rank_leaves_before_the_report_is_written():
    order, last = [], threading.Event()

    def function(place):
        def write():
            last.wait(0.5)  # a rank that did not wait would set this at once
            order.append("written")

        report = Report(verdict=Verdict.FAIL)
        JobReport(report, place.rank == 0, Job(place, 30.0)).show(write)
        order.append(f"rank {place.rank} left")
        last.set()

    run_ranks(3, function)
    assert order[0] == "written"
    assert sorted(order[1:]) == ["rank 0 left", "rank 1 left", "rank 2 left"]


def test_a_report_that_cannot_be_written_ends_every_rank():
    def function(place):
        def write():
            raise OSError("no space left")

        JobReport(Report(verdict=Verdict.PASS), place.rank == 0, Job(place, 5.0)).show(write)

    results = run_ranks(2, function)
    assert isinstance(results[0][0], OSError)
    assert isinstance(results[1][0], JobError)


def test_a_heavy_rule_that_one_rank_cannot_run_runs_on_none():
    def agree(place):
        here = {"V002": Hindrance(), "V003": Hindrance()}
        if place.rank == 1:
            here["V002"] = Hindrance(Status.BLOCKED, "blocked by D401")
        return Job(place, 5.0).agree_on_heavy(here)

    results = run_ranks(3, agree)
    assert [results[rank][0] for rank in range(3)] == [
        {"V002": Hindrance(Status.BLOCKED, "rank 1: blocked by D401")}
    ] * 3


def test_a_heavy_rule_that_one_rank_was_not_asked_to_run_runs_on_none():
    results = run_ranks(2, lambda place: Job(place, 5.0).agree_on_heavy({} if place.rank else {"V003": Hindrance()}))
    hindrance = Hindrance(Status.NOT_EVALUATED, "rank 1: it was not asked to run the rule")
    assert results[0][0] == results[1][0] == {"V003": hindrance}


def test_the_first_rank_leaves_when_its_last_word_was_read(monkeypatch):
    from shardlint.ranks import converse

    monkeypatch.setattr(converse, "LEAVING_SECONDS", 60.0)
    read = []
    have_read = converse._Turn.have_read

    def slowly(turn):
        threading.Event().wait(0.2)
        read.append(turn.place.rank)
        have_read(turn)

    monkeypatch.setattr(converse._Turn, "have_read", slowly)

    def agree(place):
        Job(place, 5.0).agree(report())
        return sorted(read) if place.rank == 0 else None

    assert run_ranks(3, agree)[0][0] == [1, 2]


def test_the_first_rank_does_not_wait_for_ever_for_readers_that_died(monkeypatch):
    from shardlint.ranks import converse

    monkeypatch.setattr(converse, "LEAVING_SECONDS", 0.1)
    monkeypatch.setattr(converse._Turn, "have_read", lambda _turn: None)
    joint = run_ranks(2, lambda place: Job(place, 5.0).agree(report()))
    assert joint[0][0].exit_status == 0


def test_a_report_that_every_rank_has_is_not_sent():
    sizes = {}
    for count in (1, 300):
        results = run_ranks(4, lambda place, n=count: Job(place, 5.0).agree(report(*map(finding, map(str, range(n))))))
        assert len({results[rank][0] for rank in range(4)}) == 1
        assert (len(results[3][0].findings), results[3][0].exit_status) == (count, 1)
        assert results[3][0].metadata["ranks"] == 4
        sizes[count] = [(results[rank][1].sent, results[rank][1].received) for rank in range(4)]
    assert sizes[1] == sizes[300]


def test_equal_ranks_get_the_report_of_rank_0():
    def agree(place):
        mine = evolve(report(finding("x")), metadata=FrozenDict(rank=place.rank))
        return Job(place, 5.0).agree(mine)

    joint = run_ranks(3, agree)
    assert [joint[rank][0].metadata for rank in range(3)] == [{"rank": 0, "ranks": 3}] * 3
