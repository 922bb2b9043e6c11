"""Rules for tests of the engine. They belong to no pack."""

from collections.abc import Iterator
from typing import Any

from shardlint import Facts, Finding, HeavyRule, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.engine.runner import SelectedRule

PAGE = """
Summary.

## What it does
Tests the engine.

## Why it is unsafe
It is not.

## What to do
Nothing.
"""


def rule(code: str, check: Any = None, /, *, base: type[Rule] = Rule, pack: str = "shardlint", **members: Any) -> Any:
    """An instance of a new rule class. `check(self, facts)` finds nothing by default; `members` win."""
    phase = Phase.from_user(code[:2]) if code[0] in "DV" else Phase.D2
    body = {"code": code, "name": f"rule-{code.lower()}", "phase": phase, "severity": Severity.ERROR, "__doc__": PAGE}
    method = "check_live" if issubclass(base, HeavyRule) else "check"
    if "judge" not in members:
        body[method] = check or (lambda self, *facts: ())
    return type(f"Rule{code}", (base,), {**body, **members})()


def selected(
    code: str, check: Any = None, *, explicit: bool = False, severity: Any = None, **more: Any
) -> SelectedRule:
    pack = more.pop("pack", "shardlint")
    return SelectedRule(rule=rule(code, check, **more), explicit=explicit, severity=severity, pack=pack)


def finds(*subjects: str) -> Any:
    def check(self: Rule, facts: Facts) -> Iterator[Finding]:
        for subject in subjects:
            yield self.finding(subject=subject, message=f"{subject} is bad")

    return check


def unordered(self: Rule, facts: Facts) -> Iterator[Finding]:
    """Yield in the order of a set of strings, which differs with every hash seed."""
    assert facts.model is not None
    for fqn in {tensor.fqn for tensor in facts.model.tensors}:
        for key in ("a", "b", "c"):
            yield self.finding(subject=fqn, message="in any order", key=key, evidence={"names": {"x", "y", "z"}})


def partly(self: Rule, facts: Facts) -> Iterator[Finding]:
    yield self.finding(subject="known", message="found")
    raise NotEvaluated("the rest has no dtype")


def careful(self: Rule, facts: Facts) -> Iterator[Finding]:
    """Read everything that there is."""
    for section in Section:
        if facts.has(section):
            yield self.finding(subject=section.value, message=repr(getattr(facts, section.value))[:50])
