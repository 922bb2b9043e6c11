"""Let one rule judge its subjects one at a time, and count what was judged and what could not be."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..diagnostics import PackFault, code_frame, error_text
from ..facts import Facts, UnknownFact
from ..rule import WHOLE, Examined, Finding, HeavyRule, NotEvaluated, Rule, Unfinished

if TYPE_CHECKING:
    from ..target import LiveTarget

FACTS_ALONE = "it needs the live model and its checkpoint, and facts alone were given"
FINDING_LIMIT = 300_000  # of one rule, that are kept: more would only end the machine's memory
COUNT_LIMIT = 3_000_000  # of one rule, that are counted: more is a rule that never ends


@define
class SubjectTally:
    """What one rule has said so far."""

    findings: list[Finding] = field(factory=list)
    beyond: int = 0
    judged: int = 0
    unknown: int = 0
    first_unknown: str = ""
    unfinished: bool = False
    examined: list[str] = field(factory=list)
    own_counts: int = 0

    def keep(self, finding: Finding) -> None:
        """Keep a finding, and only count it when there are too many already."""
        if len(self.findings) < FINDING_LIMIT:
            self.findings.append(finding)
        else:
            self.beyond += 1

    def could_not_judge(self, name: str, why: UnknownFact) -> None:
        """Count a subject that could not be judged."""
        self.unknown += 1
        self.unfinished |= isinstance(why, Unfinished)
        if not self.first_unknown:
            reason = error_text(why) or "the rule did not say what it lacked"
            self.first_unknown = f"{name}: {reason}" if name else reason

    def add(self, examined: Examined) -> None:
        """Count what a rule counted for itself."""
        self.own_counts += 1
        self.judged += examined.judged
        self.unknown += examined.unknown
        self.first_unknown = self.first_unknown or examined.first_unknown
        if examined.evidence:
            self.examined.append(examined.evidence)


def judge_all(facts: Facts, rule: Rule, live: LiveTarget | None, tally: SubjectTally) -> None:
    """Judge the rule's subjects one by one; findings go to the tally, so that a crash leaves those before it."""
    if isinstance(rule, HeavyRule):
        _judge_one(rule, WHOLE, functools.partial(_check_live, facts, rule, live), tally)
        return
    try:
        subjects: object = rule.subjects(facts)
        if not isinstance(subjects, Iterable):
            text = f"subjects() must return or yield what is judged, and returned {type(subjects).__name__}"
            raise PackFault(text, code_frame(code_of(rule)))
        for subject in subjects:
            _judge_one(rule, subject, functools.partial(rule.judge, subject, facts), tally)
    except UnknownFact as why:
        tally.could_not_judge("", why)


def _check_live(facts: Facts, rule: HeavyRule, live: LiveTarget | None) -> object:
    if live is None:
        raise NotEvaluated(FACTS_ALONE)
    return rule.check_live(facts, live)


def _judge_one(rule: Rule, subject: Any, judge: Callable[[], object], tally: SubjectTally) -> None:
    """Judge one subject, and count it."""
    counts_before = tally.own_counts
    try:
        _collect(judge(), rule, tally)
    except UnknownFact as why:
        tally.could_not_judge("" if subject is WHOLE else rule.subject_name(subject), why)
    else:
        if tally.own_counts == counts_before:
            tally.judged += 1


def _collect(result: object, rule: Rule, tally: SubjectTally) -> None:
    """Put what the rule yields into the tally one by one."""
    if not isinstance(result, Iterable):
        text = f"it must return or yield findings, and returned {type(result).__name__}"
        raise PackFault(text, code_frame(code_of(rule)))
    try:
        for finding in result:
            if isinstance(finding, Examined):
                tally.add(finding)
                continue
            problem = _problem(finding, rule, len(tally.findings) + tally.beyond)
            if problem:
                raise PackFault(problem, _frame_in(result, rule))
            tally.keep(finding)
    finally:
        if inspect.isgenerator(result):
            with suppress(Exception):
                result.close()


def _problem(finding: object, rule: Rule, count: int) -> str:
    if not isinstance(finding, Finding):
        return f"it must yield Finding objects, and yielded {type(finding).__name__}"
    if (finding.code, finding.name, finding.phase) != (rule.code, rule.name, rule.phase):
        return f"it must yield findings of {rule.code} {rule.name}, and yielded one of {finding.code} {finding.name}"
    if count >= COUNT_LIMIT:
        return f"it yielded more than {COUNT_LIMIT} findings and was stopped"
    return ""


def code_of(rule: Rule) -> Any:
    """The code object of the function in which the rule judges."""
    function: Any = rule.judge if type(rule).judge is not Rule.judge else rule.check
    function = rule.check_live if isinstance(rule, HeavyRule) else function
    return getattr(inspect.unwrap(function), "__code__", None)


def _frame_in(result: object, rule: Rule) -> str:
    """The line at which a generator stands; where the rule's check begins when it is none."""
    frame = getattr(result, "gi_frame", None)
    return code_frame(frame.f_code, frame.f_lineno) if frame else code_frame(code_of(rule))
