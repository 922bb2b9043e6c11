from datetime import date, timedelta

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from shardlint import Finding, Phase, Severity, SubjectKind
from shardlint.diagnostics import diagnostic
from shardlint.engine.runner import Outcome, Status
from shardlint.engine.source import SettingSource
from shardlint.engine.suppressions import State, Suppression, apply_suppressions, check_rule

TODAY = date(2026, 11, 30)
NAMES = {"D501": "coverage-incomplete", "D504": "shape-mismatch", "D302": "mixed-domain"}


@frozen
class RuleClass:
    code: str
    name: str


@frozen
class Registered:
    rule_class: RuleClass


RULES = [Registered(RuleClass(code, name)) for code, name in NAMES.items()]


def found(code, subject):
    return Finding(
        code=code,
        name=NAMES[code],
        phase=Phase.D5,
        severity=Severity.ERROR,
        subject=subject,
        kind=SubjectKind.TENSOR,
        message="wrong",
        why="w",
        remediation="r",
    )


def ran(*codes, status=Status.FOUND, partial=False):
    return [
        Outcome(code=code, name=NAMES[code], phase=Phase.D5, status=status, partial=partial) for code in codes or NAMES
    ]


def suppression(rules="D501", subject="**", **more):
    source = SettingSource("shardlint.yaml", more.pop("line", 7), 5, "lint.suppress[0]")
    return Suppression(rules=tuple(rules.split()), subject=subject, reason="known", source=source, **more)


def states(result):
    return [item.state for item in result.states]


A, B, C = found("D501", "layers.0.w"), found("D501", "layers.1.w"), found("D504", "head.w")


def test_active_hides_and_keeps_the_finding():
    rule = suppression("coverage-incomplete", "layers.*.w", expires=TODAY)
    result = apply_suppressions([A, B, C], [rule], ran(), TODAY, RULES)
    assert result.visible == (C,)
    assert [(item.finding, item.reason, item.source, item.expires) for item in result.suppressed] == [
        (A, "known", "shardlint.yaml:7", "2026-11-30"),
        (B, "known", "shardlint.yaml:7", "2026-11-30"),
    ]
    assert (result.diagnostics, states(result), result.states[0].matched) == ((), [State.ACTIVE], 2)


def test_a_list_of_rules_and_another_rule():
    assert apply_suppressions([A, C], [suppression("D501 shape-mismatch")], ran(), TODAY).visible == ()
    assert apply_suppressions([A, C], [suppression("D504")], ran(), TODAY).visible == (A,)


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        (ran(status=Status.CLEAN), State.UNUSED),
        (ran("D501", status=Status.FOUND), State.UNUSED),
        (ran("D501", partial=True), State.NOT_JUDGED),
        (ran("D501", status=Status.NOT_EVALUATED), State.NOT_JUDGED),
        (ran("D501", status=Status.BLOCKED), State.NOT_JUDGED),
        (ran("D501", status=Status.CRASHED), State.NOT_JUDGED),
        (ran("D501", status=Status.LEFT_OUT), State.NOT_JUDGED),
        (ran("D504"), State.NOT_JUDGED),
        ([], State.NOT_JUDGED),
    ],
)
def test_unused_is_judged_only_when_the_rule_fully_ran(outcomes, state):
    result = apply_suppressions([A], [suppression(subject="nothing.*")], outcomes, TODAY, RULES)
    assert states(result) == [state]
    assert [item.code for item in result.diagnostics] == (["SL003"] if state is State.UNUSED else [])
    assert result.visible == (A,)


def test_unused_names_its_place():
    (finding,) = apply_suppressions([], [suppression(subject="x.*")], ran(), TODAY).diagnostics
    assert finding.message == (
        "the suppression at shardlint.yaml:7 matched nothing although its rule ran with the facts it needs"
    )
    assert finding.subject == "D501 x.*"
    assert finding.evidence == {
        "source": "shardlint.yaml:7",
        "rules": ("D501",),
        "subject": "x.*",
        "reason": "known",
        "matched": 0,
    }


def test_a_list_is_unused_only_when_all_its_rules_ran():
    rules = [suppression("D501 D504", "x")]
    assert states(apply_suppressions([], rules, ran("D501"), TODAY)) == [State.NOT_JUDGED]
    assert states(apply_suppressions([], rules, ran("D501", "D504"), TODAY)) == [State.UNUSED]


@pytest.mark.parametrize(("days", "state"), [(-1, State.ACTIVE), (0, State.ACTIVE), (1, State.EXPIRED)])
def test_the_last_day_is_inclusive(days, state):
    result = apply_suppressions([A], [suppression(expires=TODAY)], ran(), TODAY + timedelta(days=days))
    assert states(result) == [state]
    assert bool(result.visible) is (state is State.EXPIRED)


def test_expired_tells_days_and_what_came_back():
    result = apply_suppressions([A, B, C], [suppression(expires=date(2026, 11, 27))], ran(), TODAY)
    (finding,) = result.diagnostics
    assert (finding.code, finding.severity) == ("SL004", Severity.ERROR)
    assert finding.message.endswith("expired on 2026-11-27 (3 days ago); 2 findings came back")
    assert finding.evidence["expires"] == "2026-11-27"
    assert result.visible == (A, B, C)


def test_expiry_is_told_even_when_the_rule_did_not_run():
    assert states(apply_suppressions([], [suppression(expires=date(2026, 1, 1))], [], TODAY)) == [State.EXPIRED]


def test_over_broad_shows_all_again():
    result = apply_suppressions([A, B, C], [suppression(expect=1)], ran(), TODAY)
    (finding,) = result.diagnostics
    assert finding.code == "SL005"
    assert finding.message.endswith("matched 2 findings, it expects at most 1; all of them are shown")
    assert (finding.evidence["matched"], finding.evidence["expect"]) == (2, 1)
    assert (result.visible, states(result)) == ((A, B, C), [State.OVER_BROAD])


def test_fewer_than_expected_is_fine():
    result = apply_suppressions([A], [suppression(expect=5)], ran(), TODAY)
    assert (result.visible, result.diagnostics) == ((), ())


def test_a_second_suppression_still_hides_what_an_over_broad_one_shows():
    result = apply_suppressions(
        [A, B], [suppression(expect=1), suppression(subject="layers.0.*", line=12)], ran(), TODAY
    )
    assert result.visible == (B,)
    assert [item.source for item in result.suppressed] == ["shardlint.yaml:12"]
    assert states(result) == [State.OVER_BROAD, State.ACTIVE]


def test_unknown_rules_are_named_with_a_suggestion():
    result = apply_suppressions([], [suppression("coverage-incomplet D501", "x")], ran(), TODAY, RULES)
    unknown, unused = result.diagnostics
    assert (unknown.code, unknown.key) == ("SL006", "coverage-incomplet")
    assert "did you mean 'coverage-incomplete'?" in unknown.message
    assert (unused.code, states(result)) == ("SL003", [State.UNUSED])
    assert result.states[0].unknown == ("coverage-incomplet",)


def test_wholly_unknown_is_not_unused():
    result = apply_suppressions([], [suppression("XYZ999")], ran(), TODAY, RULES)
    assert ([item.code for item in result.diagnostics], states(result)) == (["SL006"], [State.UNKNOWN])


def test_without_the_rules_nothing_is_unknown():
    assert apply_suppressions([], [suppression("XYZ999")], ran(), TODAY).diagnostics == ()


def test_diagnostics_that_may_be_suppressed():
    rules = [suppression(subject="x"), suppression("XYZ999"), suppression("SL003 unknown-rule", line=9)]
    result = apply_suppressions([], rules, ran(), TODAY, RULES)
    assert result.diagnostics == ()
    assert [item.finding.code for item in result.suppressed] == ["SL003", "SL006"]
    assert states(result) == [State.UNUSED, State.UNKNOWN, State.ACTIVE]


def test_suppressing_diagnostics_is_bounded_by_expect_too():
    rules = [suppression(subject="x"), suppression(subject="y"), suppression("SL003", expect=1, line=9)]
    result = apply_suppressions([], rules, ran(), TODAY, RULES)
    assert [item.code for item in result.diagnostics] == ["SL003", "SL003", "SL005"]


@pytest.mark.parametrize("code", ["SL001", "SL002", "SL004", "SL005", "SL008", "rule-crashed", "duplicate-code"])
def test_some_diagnostics_can_never_be_suppressed(code):
    with pytest.raises(ValueError, match="which never can"):
        suppression(code)


def test_a_crash_stays_visible_under_any_suppression():
    crash = diagnostic("SL001", subject="D501", message="crashed")
    assert apply_suppressions([crash], [suppression("D501 D504 SL003")], ran(), TODAY).visible == (crash,)


@pytest.mark.parametrize("text", ["ALL", "D3", "D50", "tag:moe", "D501*", "", "Coverage"])
def test_only_exact_rules(text):
    with pytest.raises(ValueError, match="expected the exact code or name of a rule"):
        check_rule(text)


@pytest.mark.parametrize(
    "bad", [{"rules": ()}, {"subject": " "}, {"reason": ""}, {"expect": 0}, {"rules": ("D501", "D5")}]
)
def test_bad_suppressions_are_refused(bad):
    good = {"rules": ("D501",), "subject": "x", "reason": "known"}
    with pytest.raises(ValueError, match="expected"):
        Suppression(**(good | bad))


findings = st.lists(
    st.builds(found, st.sampled_from(sorted(NAMES)), st.sampled_from(["a", "a.b", "a.0.w", "a.1.w", "c.w"])), max_size=8
)
several = st.lists(
    st.builds(
        lambda rule, subject, days, expect: suppression(
            rule, subject, expires=None if days is None else TODAY + timedelta(days=days), expect=expect
        ),
        st.sampled_from([*sorted(NAMES), *NAMES.values(), "XYZ999"]),
        st.sampled_from(["**", "a", "a.*", "a.**", "*.*.w", "zzz"]),
        st.none() | st.integers(-2, 2),
        st.none() | st.integers(1, 3),
    ),
    max_size=5,
)


@given(findings, several, st.sets(st.sampled_from(sorted(NAMES)), min_size=1))
def test_no_finding_is_ever_lost(items, rules, codes):
    result = apply_suppressions(items, rules, ran(*codes), TODAY, RULES)
    assert sorted(map(repr, [*result.visible, *(item.finding for item in result.suppressed)])) == sorted(
        map(repr, items)
    )
    assert [item.suppression for item in result.states] == rules
    good = [item.suppression for item in result.states if item.state is State.ACTIVE]
    assert all(any(item.covers(hidden.finding) for item in good) for hidden in result.suppressed)
    assert not any(item.covers(finding) for item in good for finding in result.visible)
    assert all(item.code in {"SL003", "SL004", "SL005", "SL006"} for item in result.diagnostics)
