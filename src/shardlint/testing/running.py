"""Run one rule over facts and say, in words, where it did not do what a case expects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

from ..engine.runner import SelectedRule, Status, evaluate
from ..facts import Facts
from ..rule import Finding, Rule
from ..target import LiveTarget
from .cases import Case, CaseError, Expected, case_facts


@frozen(kw_only=True)
class RuleRun:
    """
    What became of one rule over one snapshot. `reason` says what was missing, or how the rule crashed.

    `judged` counts the subjects that it judged, `unknown` those that it could not.
    """

    rule: Rule
    status: Status
    findings: tuple[Finding, ...]
    reason: str
    judged: int = 0
    unknown: int = 0

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects of the findings, in report order."""
        return tuple(finding.subject for finding in self.findings)


def run_rule(rule: type[Rule] | Rule, facts: Facts, live: LiveTarget | None = None, **options: Any) -> RuleRun:
    """
    Evaluate `rule` over `facts` as the engine does, with `options` of the rule by name.

    A `HeavyRule` reads `live` (`shardlint.LiveTarget`); without it, it is not evaluated.
    Raises `AssertionError` when the rule crashes, so that no test takes a crash for silence.
    """
    instance = rule if isinstance(rule, Rule) else rule(rule.options_type(**options))
    evaluation = evaluate(facts, [SelectedRule(rule=instance, pack="under test")], heavy=True, live=live)
    (outcome,) = evaluation.outcomes
    if outcome.status is Status.CRASHED:
        raise AssertionError(f"{outcome.code} crashed: {outcome.reason}\n{evaluation.findings[-1].evidence}")
    return RuleRun(
        rule=instance,
        status=outcome.status,
        findings=evaluation.findings,
        reason=outcome.reason,
        judged=outcome.judged,
        unknown=outcome.unknown,
    )


def rules_by_code(rules: Iterable[type[Rule]]) -> dict[str, type[Rule]]:
    """Rule classes under both their code and their name."""
    listed = list(rules)
    return {rule.code: rule for rule in listed} | {rule.name: rule for rule in listed}


def run_case(case: Case, rules: Iterable[type[Rule]]) -> RuleRun:
    """Run the rule of `case`. Raises `CaseError` when `rules` do not hold it."""
    known = rules_by_code(rules)
    if case.rule not in known:
        raise CaseError(f"{case.path}: no rule {case.rule!r} among {', '.join(sorted(known))}")
    return run_rule(known[case.rule], case_facts(case), **{key.replace("-", "_"): v for key, v in case.options.items()})


def check_case(case: Case, rules: Iterable[type[Rule]]) -> None:
    """Assert that the rule of `case` finds exactly what the case expects, no more and no less."""
    run = run_case(case, rules)
    if case.not_evaluated is not None:
        assert_not_evaluated(run, case.not_evaluated, partial=bool(case.expect))
    elif run.reason:
        raise AssertionError(f"{case}: was not (fully) evaluated: {run.reason}")
    elif case.nothing is not (run.status is Status.NOTHING):
        wanted = "nothing to judge" if case.nothing else "something that is judged"
        raise AssertionError(f"{case}: expected {wanted}, found {run.judged} subjects judged")
    expected = sorted(expected_finding.subject for expected_finding in case.expect)
    if sorted(run.subjects) != expected:
        raise AssertionError(f"{case}: expected findings about {expected}, found\n{_listed(run.findings)}")
    left = list(run.findings)
    for expected_finding in case.expect:
        same = [finding for finding in left if finding.subject == expected_finding.subject]
        fitting = [finding for finding in same if not _differences(expected_finding, finding, run.rule)]
        if not fitting:
            raise AssertionError(
                f"{case}: {expected_finding.subject}: {'; '.join(_differences(expected_finding, same[0], run.rule))}"
            )
        left.remove(fitting[0])


def _differences(expected: Expected, finding: Finding, rule: Rule) -> list[str]:
    severity = expected.severity or rule.severity
    differences = []
    if finding.severity is not severity:
        differences.append(f"expected severity {severity.value}, found {finding.severity.value}")
    if expected.message is not None and finding.message != expected.message:
        differences.append(f"expected message {expected.message!r}, found {finding.message!r}")
    differences += [
        f"the message {finding.message!r} does not say {part!r}"
        for part in expected.says
        if part not in finding.message
    ]
    for key, value in expected.evidence.items():
        if finding.evidence.get(key) != value:
            differences.append(f"expected evidence {key} = {value!r}, found {finding.evidence.get(key)!r}")
    if expected.owner is not None and finding.owner != expected.owner:
        differences.append(f"expected owner {expected.owner!r}, found {finding.owner!r}")
    return differences


def _listed(findings: Iterable[Finding]) -> str:
    return (
        "\n".join(f"  {finding.severity.value} {finding.subject}: {finding.message}" for finding in findings)
        or "  nothing"
    )


def assert_rule_clean(run: RuleRun) -> None:
    """Assert that the rule was evaluated and found nothing."""
    if run.status is not Status.CLEAN:
        raise AssertionError(f"expected clean, found {run.status.value} {run.reason}\n{_listed(run.findings)}")


def assert_findings(run: RuleRun, *subjects: str) -> None:
    """Assert that the findings are about exactly `subjects`, in any order."""
    if sorted(run.subjects) != sorted(subjects):
        raise AssertionError(f"expected findings about {sorted(subjects)}, found\n{_listed(run.findings)} {run.reason}")


def assert_not_evaluated(run: RuleRun, reason: str = "", *, partial: bool = False) -> None:
    """Assert that the rule said it could not be evaluated (`partial`: not fully), with `reason` in its text."""
    wanted = Status.FOUND if partial else Status.NOT_EVALUATED
    if run.status is not wanted or not run.reason or reason not in run.reason:
        raise AssertionError(
            f"expected {wanted.value} because of {reason!r}, got {run.status.value} because of {run.reason!r}\n"
            + _listed(run.findings)
        )
