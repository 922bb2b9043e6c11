"""One report out of those of several ranks."""

import pytest
from attrs import evolve

from shardlint.engine.runner import Status
from shardlint.facts import FrozenDict
from shardlint.ranks.merge_reports import RanksReport, decode_report, digest_source, encode_report, merge
from shardlint.report import Verdict
from shardlint.report.model import verdict_of
from support.reports import missing, outcome, sample, tie


def report(*findings, outcomes=(), blocked_by=()):
    verdict = verdict_of(findings, blocked_by, sample().fail_level)
    return sample(findings=findings, suppressed=(), outcomes=outcomes, blocked_by=blocked_by, verdict=verdict)


def joined(*reports):
    return merge([RanksReport(ranks=(rank,), report=one) for rank, one in enumerate(reports)], len(reports))


def test_a_report_survives_its_way_as_json():
    assert decode_report(encode_report(sample())) == sample()


def test_times_are_no_difference_of_opinion():
    slower = sample(outcomes=tuple(evolve(item, seconds=9.0) for item in sample().outcomes), seconds=7.0)
    assert digest_source(slower) == digest_source(sample())
    assert digest_source(sample(findings=())) != digest_source(sample())


def test_a_finding_names_the_ranks_that_have_it_unless_all_do():
    found = joined(report(tie(), missing(1)), report(tie()), report(tie(), missing(1)))
    assert {finding.code: finding.ranks for finding in found.findings} == {"D406": (), "D501": (0, 2)}
    assert found.verdict is Verdict.FAIL
    assert found.metadata["ranks"] == 3


def test_a_finding_that_names_ranks_itself_keeps_them():
    (finding,) = joined(report(tie(ranks=(1,))), report()).findings
    assert finding.ranks == (1,)


@pytest.mark.parametrize("worse", [Status.NOT_EVALUATED, Status.CRASHED, Status.BLOCKED])
def test_the_worse_outcome_holds_with_the_rank_that_says_it(worse):
    clean, other = outcome("D501", Status.CLEAN), outcome("D501", worse, reason="no checkpoint")
    (kept,) = joined(report(outcomes=(clean,)), report(outcomes=(other,))).outcomes
    assert (kept.status, kept.reason) == (worse, "rank 1: no checkpoint")


def test_what_blocks_one_rank_blocks_all():
    found = joined(report(), report(blocked_by=("D501 crashed",)))
    assert found.blocked_by == ("rank 1: D501 crashed",)
    assert found.verdict is Verdict.BLOCKED


def test_suppressed_findings_are_joined_with_their_reasons():
    found = joined(evolve(report(), suppressed=sample().suppressed), report())
    (hidden,) = found.suppressed
    assert (hidden.reason, hidden.finding.ranks) == ("known since March", (0,))


def test_the_number_of_the_rank_is_no_difference_of_opinion():
    first, second = (sample(metadata=FrozenDict({"rank": rank, "model": "M"})) for rank in (0, 1))
    assert digest_source(first) == digest_source(second)


def test_a_rule_that_a_rank_left_out_is_not_clean_for_the_job():
    found = joined(report(outcomes=(outcome("D408", Status.CLEAN),)), report(outcomes=()))
    (kept,) = found.outcomes
    assert (kept.status, kept.reason) == (Status.LEFT_OUT, "rank 1: it left this rule out")


def test_ranks_of_a_finding_are_sorted():
    (finding,) = joined(report(tie(ranks=(1, 0))), report()).findings
    assert finding.ranks == (0, 1)
