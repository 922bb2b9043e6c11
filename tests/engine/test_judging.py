"""Rules name subjects and judge them one at a time; the engine counts what was judged and what could not be."""

import pytest

from shardlint import WHOLE, Examined, HeavyRule, LiveTarget, NotEvaluated, Unknown
from shardlint.engine.runner import Status, evaluate
from shardlint.facts import Facts
from support.sample_rules import selected


def judging(*subjects, **members):
    """A rule that finds its subjects above 10 to be wrong, and cannot judge those that are not known."""

    def judge(self, subject, facts):
        if subject > 10:
            yield self.finding(subject=str(subject), message="too large")

    return selected("D401", None, subjects=lambda self, facts: subjects, judge=judge, **members)


def outcome(rule, **more):
    (only,) = evaluate(Facts(), [rule], **more).outcomes
    return only


UNREAD = Unknown("it is not read")


@pytest.mark.parametrize(
    ("subjects", "status", "judged", "unknown"),
    [
        ((1, 2, 3), Status.CLEAN, 3, 0),
        ((), Status.NOTHING, 0, 0),
        ((1, UNREAD), Status.NOT_EVALUATED, 1, 1),
        ((UNREAD,), Status.NOT_EVALUATED, 0, 1),
        ((1, UNREAD, 11), Status.FOUND, 2, 1),
        ((11, 12), Status.FOUND, 2, 0),
    ],
    ids=["clean", "nothing", "some unknown", "all unknown", "found and unknown", "found"],
)
def test_a_rule_is_clean_only_when_every_subject_was_judged(subjects, status, judged, unknown):
    seen = outcome(judging(*subjects))
    assert (seen.status, seen.judged, seen.unknown) == (status, judged, unknown)
    assert seen.partial is (status is Status.FOUND and unknown > 0)


def test_the_reason_counts_and_names_the_first():
    seen = outcome(judging(1, UNREAD, UNREAD, noun="tensor"))
    assert seen.reason == "not evaluated for 2 of 3 tensors (first: a tensor: it is not read)"


def test_a_subject_that_the_rule_gives_up_is_unknown():
    def judge(self, subject, facts):
        if subject == "b":
            raise NotEvaluated("b has no dtype")
        yield self.finding(subject=subject, message="wrong")

    rule = selected("D401", None, subjects=lambda self, facts: ("a", "b", "c"), judge=judge)
    evaluation = evaluate(Facts(), [rule])
    assert [finding.subject for finding in evaluation.findings] == ["a", "c"]
    assert evaluation.outcomes[0].reason == "not evaluated for 1 of 3 subjects (first: b: b has no dtype)"


def test_subjects_that_are_not_known_make_the_whole_rule_not_evaluated():
    def subjects(self, facts):
        raise NotEvaluated("nobody collected units")

    seen = outcome(selected("D401", None, subjects=subjects, judge=lambda self, *_: ()))
    assert (seen.status, seen.reason, seen.judged) == (Status.NOT_EVALUATED, "nobody collected units", 0)


def test_a_rule_with_check_alone_is_one_subject():
    assert outcome(selected("D401")).judged == 1
    seen = outcome(selected("D401", lambda self, facts: iter([not UNREAD])))
    assert (seen.status, seen.unknown, seen.reason) == (Status.NOT_EVALUATED, 1, "it is not read")


def test_a_heavy_rule_counts_for_itself():
    def look(self, facts, live):
        yield Examined(judged=57, evidence="57 tensors with REF")

    seen = outcome(selected("V002", look, base=HeavyRule), heavy=True, live=LiveTarget())
    assert (seen.status, seen.judged, seen.examined) == (Status.CLEAN, 57, "57 tensors with REF")


def test_subjects_that_cannot_be_iterated_are_the_rules_fault():
    rule = selected("D401", None, subjects=lambda self, facts: 5, judge=lambda self, *_: ())
    assert outcome(rule).status is Status.CRASHED


@pytest.mark.parametrize(
    ("subject", "name"),
    [("a.b", "a.b"), (("a.b", 3), "a.b"), (WHOLE, "the whole"), (4, "4")],
)
def test_subjects_have_names(subject, name):
    assert selected("D401").rule.subject_name(subject) == name
