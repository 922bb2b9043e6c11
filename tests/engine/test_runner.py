"""What becomes of rules: outcomes, gates, heavy rules, severities, order."""

import itertools

import pytest

from shardlint import Facts, Finding, HeavyRule, LiveTarget, NotEvaluated, Phase, Section, Severity
from shardlint.diagnostics import diagnostic
from shardlint.engine.runner import Evaluation, Status, evaluate, sort_findings
from shardlint.report.model import untrusted
from support.packs import sample_facts
from support.sample_rules import finds, partly, rule, selected, unordered


def statuses(evaluation: Evaluation) -> dict[str, Status]:
    return {outcome.code: outcome.status for outcome in evaluation.outcomes}


def raises(error: BaseException):
    def check(self, facts):
        raise error

    return check


def test_nothing_selected() -> None:
    assert evaluate(Facts(), []) == Evaluation(findings=(), outcomes=())


def test_clean_and_found() -> None:
    evaluation = evaluate(sample_facts(), [selected("D201"), selected("D202", finds("b", "a"))])
    assert statuses(evaluation) == {"D201": Status.CLEAN, "D202": Status.FOUND}
    assert [finding.subject for finding in evaluation.findings] == ["a", "b"]
    assert [outcome.findings for outcome in evaluation.outcomes] == [0, 2]
    assert not any(outcome.partial or outcome.reason for outcome in evaluation.outcomes)


def test_a_rule_whose_facts_are_absent_is_not_evaluated() -> None:
    needs = (Section.MODEL, Section.CHECKPOINT, Section.LOAD)
    check = raises(AssertionError("it was called"))
    (outcome,) = evaluate(sample_facts(), [selected("D501", check, needs=needs)]).outcomes
    assert outcome.status is Status.NOT_EVALUATED
    assert outcome.lacks == (Section.CHECKPOINT, Section.LOAD)
    assert outcome.reason == "no checkpoint facts were collected; no load facts were collected"


@pytest.mark.parametrize("returns", [True, False])
def test_a_rule_that_finds_out_itself_is_not_evaluated(returns: bool) -> None:
    def check(self, facts):
        raise NotEvaluated("no dtype")

    def lazily(self, facts):
        raise NotEvaluated("no dtype")
        yield

    (outcome,) = evaluate(Facts(), [selected("D501", check if returns else lazily)]).outcomes
    assert (outcome.status, outcome.reason, outcome.partial) == (Status.NOT_EVALUATED, "no dtype", False)


def test_not_evaluated_without_a_word_still_says_something() -> None:
    (outcome,) = evaluate(Facts(), [selected("D501", raises(NotEvaluated()))]).outcomes
    assert outcome.reason == "the rule did not say what it lacked"


def test_what_was_found_before_a_fact_was_missing_is_partial() -> None:
    evaluation = evaluate(Facts(), [selected("D501", partly)])
    (outcome,) = evaluation.outcomes
    assert (outcome.status, outcome.partial, outcome.findings) == (Status.FOUND, True, 1)
    assert outcome.reason == "the rest has no dtype"


@pytest.mark.parametrize(("check", "needs"), [(partly, ()), (raises(NotEvaluated("no")), ()), (None, (Section.LOAD,))])
def test_explicit_and_not_wholly_evaluated_is_not_to_be_trusted(check, needs) -> None:
    for explicit in (True, False):
        item = selected("D501", check, needs=needs, explicit=explicit)
        evaluation = evaluate(Facts(), [item])
        assert bool(untrusted(evaluation.outcomes, evaluation.findings)) is explicit


def heavy(self, facts, live):
    yield self.finding(subject=str(live.checkpoint), message="read")


def test_a_heavy_rule_is_left_out_unless_asked_for() -> None:
    live = LiveTarget(checkpoint="here")
    (outcome,) = evaluate(Facts(), [selected("V002", heavy, base=HeavyRule)], live=live).outcomes
    assert outcome.status is Status.LEFT_OUT
    assert "--heavy" in outcome.reason
    assert not untrusted((outcome,), ())
    for options in ({"heavy": True, "explicit": False}, {"heavy": False, "explicit": True}):
        item = selected("V002", heavy, base=HeavyRule, explicit=options["explicit"])
        evaluation = evaluate(Facts(), [item], heavy=options["heavy"], live=live)
        assert [finding.subject for finding in evaluation.findings] == ["here"]


def test_a_heavy_rule_without_live_objects_is_not_evaluated() -> None:
    (outcome,) = evaluate(Facts(), [selected("V002", heavy, base=HeavyRule)], heavy=True).outcomes
    assert outcome.status is Status.NOT_EVALUATED
    assert "facts alone were given" in outcome.reason


def test_a_gate_that_found_an_error_blocks_what_it_names() -> None:
    gate = {"blocks": ("D3", "D203", "V0")}
    rules = [selected("D202"), selected("D203"), selected("D301"), selected("V001"), selected("D401")]
    evaluation = evaluate(Facts(), [*rules, selected("D205", finds("model"), **gate)])
    assert statuses(evaluation) == {
        "D205": Status.FOUND,
        "D202": Status.CLEAN,
        "D203": Status.BLOCKED,
        "D301": Status.BLOCKED,
        "V001": Status.BLOCKED,
        "D401": Status.CLEAN,
    }
    assert {outcome.reason for outcome in evaluation.outcomes if outcome.status is Status.BLOCKED} == {
        "blocked by D205"
    }
    clean = evaluate(Facts(), [*rules, selected("D205", **gate)])
    assert set(statuses(clean).values()) == {Status.CLEAN}


def test_a_gate_blocks_by_what_it_found_not_by_what_the_user_calls_it() -> None:
    gate = selected("D201", finds("model"), blocks=("ALL",), severity=Severity.INFO)
    evaluation = evaluate(Facts(), [gate, selected("D301")])
    assert statuses(evaluation)["D301"] is Status.BLOCKED
    assert [finding.severity for finding in evaluation.findings] == [Severity.INFO]


def test_a_gate_that_only_warns_or_crashes_blocks_nothing() -> None:
    for check in (
        lambda self, facts: [self.finding(subject="x", message="y", severity=Severity.WARNING)],
        raises(ValueError("no")),
    ):
        evaluation = evaluate(Facts(), [selected("D201", check, blocks=("ALL",)), selected("D301")])
        assert statuses(evaluation)["D301"] is Status.CLEAN


def test_a_severity_of_the_user_wins_but_not_over_crashes() -> None:
    def crash(self, facts):
        yield self.finding(subject="x", message="y")
        raise ValueError

    evaluation = evaluate(Facts(), [selected("D201", crash, severity=Severity.WARNING)])
    assert {finding.code: finding.severity for finding in evaluation.findings} == {
        "D201": Severity.WARNING,
        "SL001": Severity.ERROR,
    }


def test_rules_are_evaluated_by_phase_with_gates_first_whatever_their_order() -> None:
    items = [selected("D402"), selected("D401"), selected("D102"), selected("D405", blocks=("D5",))]
    for order in itertools.permutations(items):
        outcomes = evaluate(Facts(), order).outcomes
        assert [outcome.code for outcome in outcomes] == ["D102", "D405", "D401", "D402"]


def test_findings_have_one_order() -> None:
    evaluation = evaluate(
        sample_facts(), [selected("D202", unordered), selected("D101", finds("layers.10", "layers.2"))]
    )
    found = evaluation.findings
    assert [finding.subject for finding in found[:2]] == ["layers.2", "layers.10"]
    for _ in range(3):
        assert tuple(sort_findings(reversed(found))) == found


def test_findings_that_differ_in_evidence_only_have_one_order() -> None:
    one = rule("D201")
    pair = [one.finding(subject="x", message="y", evidence={"shape": (size,)}) for size in (1, 2)]
    assert sort_findings(pair) == sort_findings(pair[::-1])


def test_engine_diagnostics_come_first_in_the_order() -> None:
    own = diagnostic("SL001", subject="D999", message="crashed")
    assert sort_findings([rule("D101").finding(subject="a", message="b"), own])[0] is own


@pytest.mark.parametrize("pack", ["shardlint", "acme"])
def test_ctrl_c_is_not_swallowed(pack: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate(Facts(), [selected("D201", raises(KeyboardInterrupt()), pack=pack)])


def test_a_generator_is_closed_when_its_rule_is_stopped() -> None:
    closed = []

    def check(self, facts):
        try:
            yield "rubbish"
        finally:
            closed.append(True)

    evaluate(Facts(), [selected("D201", check)])
    assert closed == [True]


def test_what_a_rule_prints_does_not_reach_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    def check(self, facts):
        print("debugging")
        return ()

    evaluate(Facts(), [selected("D201", check)])
    assert capsys.readouterr() == ("", "debugging\n")


def test_the_clock_is_read_around_each_rule() -> None:
    ticks = itertools.count(step=2.0)
    outcomes = evaluate(Facts(), [selected("D201"), selected("D202")], clock=lambda: next(ticks)).outcomes
    assert [outcome.seconds for outcome in outcomes] == [2.0, 2.0]


def test_a_rule_of_the_built_in_pack_that_crashes_is_told_like_any_other() -> None:
    evaluation = evaluate(Facts(), [selected("D201", raises(ValueError("bad"))), selected("D202", finds("x"))])
    crash, found = evaluation.findings
    assert (crash.code, crash.subject, found.code) == ("SL001", "D201", "D202")
    assert crash.phase is Phase.ENGINE
    assert "test_runner.py" in str(crash.evidence["frame"])
    assert isinstance(found, Finding)


def test_facts_are_watched_though_they_hold_names_that_are_no_text() -> None:
    facts = Facts(target=b"\xff".decode(errors="surrogateescape"))
    assert statuses(evaluate(facts, [selected("ACM001", pack="acme")])) == {"ACM001": Status.CLEAN}
