"""Evaluate rules over facts: each rule by itself, its outcome told, its crash a finding of its own."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import attrs
from attrs import evolve, field, frozen

from ..diagnostics import PackFault, PackOrigin, code_frame, describe_error, rule_crashed
from ..facts import Facts, Section
from ..facts.codec import decode_facts, encode_facts
from ..names import counted, natural_key
from ..plugins.registry import RegisteredRule
from ..rule import Cost, Finding, HeavyRule, Phase, Rule, Severity
from .judging import FACTS_ALONE, SubjectTally, code_of, judge_all

if TYPE_CHECKING:
    from ..target import LiveTarget

BUILTIN_PACK = "shardlint"


class Status(enum.Enum):
    """
    What became of a rule in a run.

    CLEAN: every subject was judged, and there was at least one. NOTHING: there was no subject, so nothing is said.
    """

    CLEAN = "clean"
    FOUND = "found"
    NOTHING = "nothing-to-judge"
    NOT_EVALUATED = "not-evaluated"
    BLOCKED = "blocked"
    CRASHED = "crashed"
    LEFT_OUT = "left-out"


@frozen(kw_only=True)
class SelectedRule:
    """
    A rule that is to run, with what the selection decided about it.

    `explicit` is true when it was selected by its exact code or name; `severity` overrides that of its findings;
    the pack's fields say where it comes from, for diagnostics. `failure` is what its constructor raised, in which
    case `rule` was never initialised and is not evaluated.
    """

    rule: Rule
    explicit: bool = False
    severity: Severity | None = None
    pack: str = BUILTIN_PACK
    pack_version: str = ""
    pack_root: str = ""
    pack_dist: str = ""
    issues_url: str = ""
    failure: BaseException | None = None

    @property
    def origin(self) -> PackOrigin:
        """The pack that the rule comes from."""
        return PackOrigin(
            pack=self.pack,
            dist=self.pack_dist,
            version=self.pack_version,
            root=self.pack_root,
            issues_url=self.issues_url,
        )


@frozen(kw_only=True)
class Outcome:
    """
    What became of one rule. `reason` says what was missing, which gate blocked, or how it crashed.

    `partial` is set when it found something and could not finish. `lacks` are the sections that the rule needs and
    the facts do not have. `unfinished` is set when it began its work and did not look at everything. `judged` counts
    the subjects that it judged, `unknown` those that it could not; `noun` is what one is called. `examined` says in
    words what was compared with what, where the rule says so.
    """

    code: str
    name: str
    phase: Phase
    status: Status
    findings: int = 0
    reason: str = ""
    partial: bool = False
    explicit: bool = False
    lacks: tuple[Section, ...] = ()
    pack: str = BUILTIN_PACK
    seconds: float = field(default=0.0, eq=False)
    unfinished: bool = False
    judged: int = 0
    unknown: int = 0
    noun: str = "subject"
    examined: str = ""


@frozen(kw_only=True)
class Evaluation:
    """Findings in report order, and the outcome of every selected rule in the order of evaluation."""

    findings: tuple[Finding, ...]
    outcomes: tuple[Outcome, ...]


def to_selected(
    rule: RegisteredRule,
    *,
    explicit: bool = False,
    severity: Severity | None = None,
    options: Any = None,
) -> SelectedRule:
    """
    Make an instance of a registered rule, ready for `evaluate`; `options` is an instance of its options class.

    Never raises for what the rule does: one whose constructor raises is reported as crashed when it is evaluated.
    """
    failure: BaseException | None = None
    try:
        instance = rule.rule_class(options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failure, instance = error, object.__new__(rule.rule_class)
    return SelectedRule(
        rule=instance,
        explicit=explicit,
        severity=severity,
        pack=rule.pack,
        pack_version=rule.version,
        pack_root=rule.root,
        pack_dist=rule.dist,
        issues_url=rule.issues_url,
        failure=failure,
    )


@frozen
class _Result:
    """What came of one rule."""

    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    lacks: tuple[Section, ...] = ()
    unfinished: bool = False
    judged: int = 0
    unknown: int = 0
    examined: str = ""


@frozen
class Hindrance:
    """Why a heavy rule does not run on a rank: what would become of it there, and the reason. No status: it can run."""

    status: Status | None = None
    reason: str = ""


Agree = Callable[[dict[str, Hindrance]], dict[str, Hindrance]]
"""Takes what hinders each heavy rule on this rank, by code, and returns what hinders it on some rank of the job."""


def evaluate(
    facts: Facts,
    rules: Iterable[SelectedRule],
    *,
    heavy: bool = False,
    live: LiveTarget | None = None,
    agree: Agree | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Evaluation:
    """
    Evaluate `rules` over `facts`, phase by phase, gates first within their phase.

    Heavy rules run when `heavy` is set or they were selected explicitly; else their outcome is left-out. With `agree`
    they come last, and those that some rank of the job cannot run are not run on any: `agree` is called once. A rule
    that raises, exits, yields rubbish or changes the facts gives an SL001 finding and the outcome crashed; every
    other rule is evaluated all the same, and `facts` are afterwards what they were before.
    """
    ordered = sorted(rules, key=lambda item: (item.rule.phase, not item.rule.blocks, item.rule.code))
    run = _Evaluation(facts, heavy=heavy, live=live, agree=agree, clock=clock)
    if all(item.pack == BUILTIN_PACK for item in ordered):
        return run.over(ordered)
    before = encode_facts(facts)
    result = run.over(ordered)
    if _unchanged(facts, before):
        return result
    # Some rule changed the facts, so no outcome of this pass can be trusted: once more, looking after each rule.
    _restore(facts, before)
    again = None if agree is None else _once_together
    return _Evaluation(facts, heavy=heavy, live=live, agree=again, clock=clock, pristine=before).over(ordered)


def _once_together(hindrances: dict[str, Hindrance]) -> dict[str, Hindrance]:
    """The other ranks do not come a second time."""
    reason = "a rule changed the facts, and the ranks of a job read weights together once"
    return {code: Hindrance(Status.NOT_EVALUATED, reason) for code in hindrances}


def _unchanged(facts: Facts, before: bytes) -> bool:
    try:
        return encode_facts(facts) == before
    except Exception:
        return False  # something was put into the facts that is no fact


def _restore(facts: Facts, before: bytes) -> None:
    """Undo, in place, what a rule did to frozen facts: everybody who holds them must see what was collected."""
    pristine = decode_facts(before, references=False)
    for item in attrs.fields(Facts):
        object.__setattr__(facts, item.name, getattr(pristine, item.name))


class _Evaluation:
    """One pass over the rules. With `pristine` (the encoded facts) the facts are compared after every rule."""

    def __init__(
        self,
        facts: Facts,
        *,
        heavy: bool,
        live: LiveTarget | None,
        clock: Callable[[], float],
        agree: Agree | None = None,
        pristine: bytes | None = None,
    ) -> None:
        self._facts = facts
        self._heavy = heavy
        self._live = live
        self._clock = clock
        self._agree = agree
        self._pristine = pristine
        self._hindered: dict[str, Hindrance] = {}
        self._gates: dict[str, str] = {}

    def over(self, ordered: Sequence[SelectedRule]) -> Evaluation:
        """Evaluate the rules in the order given."""
        findings: list[Finding] = []
        outcomes: dict[str, Outcome] = {}
        for item in self._in_turn(ordered):
            started = self._clock()
            result = self._guarded(item)
            if any(found.severity is Severity.ERROR and found.code == item.rule.code for found in result.findings):
                self._gates.update(dict.fromkeys(item.rule.blocks, item.rule.code))
            outcomes[item.rule.code] = _outcome(item, result, self._clock() - started)
            findings.extend(_with_severity(found, item.severity) for found in result.findings)
        return Evaluation(
            findings=tuple(sort_findings(findings)), outcomes=tuple(outcomes[item.rule.code] for item in ordered)
        )

    def _in_turn(self, ordered: Sequence[SelectedRule]) -> Iterator[SelectedRule]:
        """The rules in order; in a job the heavy ones come last, once the ranks have agreed which of them run."""
        if self._agree is None:
            yield from ordered
            return
        heavy = [item for item in ordered if item.rule.cost is Cost.HEAVY]
        yield from (item for item in ordered if item.rule.cost is not Cost.HEAVY)
        asked = [item for item in heavy if self._heavy or item.explicit]
        self._hindered = self._agree({item.rule.code: self._hindrance(item) for item in asked})
        yield from heavy

    def _hindrance(self, item: SelectedRule) -> Hindrance:
        before = self._before(item)
        if before is not None:
            return Hindrance(before.status, before.reason)
        rule = item.rule
        reason = ""
        if isinstance(rule, HeavyRule) and self._live is not None:
            with suppress(Exception):  # what it raises there it raises again when it runs
                reason = rule.unready(self._facts, self._live)
        elif isinstance(rule, HeavyRule):
            reason = FACTS_ALONE
        return Hindrance(Status.NOT_EVALUATED, reason) if reason else Hindrance()

    def _guarded(self, item: SelectedRule) -> _Result:
        result = self._evaluate(item)
        if self._pristine is None or _unchanged(self._facts, self._pristine):
            return result
        _restore(self._facts, self._pristine)
        text = "it changed the facts, which are frozen; its findings are not used"
        return _crash(item, PackFault(text, code_frame(code_of(item.rule))), ())

    def _evaluate(self, item: SelectedRule) -> _Result:
        before = self._before(item)
        if before is not None:
            return before
        hindrance = self._hindered.get(item.rule.code, Hindrance())
        return self._check(item) if hindrance.status is None else _Result(hindrance.status, (), hindrance.reason)

    def _before(self, item: SelectedRule) -> _Result | None:
        """What becomes of a rule that is not run here; None when it is to run."""
        rule = item.rule
        if rule.cost is Cost.HEAVY and not (self._heavy or item.explicit):
            return _Result(Status.LEFT_OUT, (), "a heavy rule: ask for it with --heavy or by its exact code or name")
        gate = next((code for selector, code in self._gates.items() if matches_selector(rule, selector)), None)
        if gate:
            return _Result(Status.BLOCKED, (), f"blocked by {gate}")
        lacks = tuple(section for section in rule.needs if not self._facts.has(section))
        if lacks:
            why = "; ".join(dict.fromkeys(self._facts.why_absent(section) for section in lacks))
            return _Result(Status.NOT_EVALUATED, (), why, lacks)
        return None if item.failure is None else _crash(item, item.failure, ())

    def _check(self, item: SelectedRule) -> _Result:
        tally = SubjectTally()
        try:
            with redirect_stdout(sys.stderr):  # standard output belongs to the report
                judge_all(self._facts, item.rule, self._live, tally)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, and the private ones of torch, pytest, asyncio
            return _crash(item, error, tally.findings)
        return _result(item.rule, tally)


def _result(rule: Rule, tally: SubjectTally) -> _Result:
    """What a rule that did not crash has come to."""
    if tally.findings:
        status = Status.FOUND
    elif tally.unknown:
        status = Status.NOT_EVALUATED
    else:
        status = Status.CLEAN if tally.judged else Status.NOTHING
    return _Result(
        status,
        tuple(tally.findings),
        _reason(rule, tally),
        unfinished=tally.unfinished,
        judged=tally.judged,
        unknown=tally.unknown,
        examined="; ".join(tally.examined),
    )


def _reason(rule: Rule, tally: SubjectTally) -> str:
    if tally.beyond:
        return f"the first {len(tally.findings):,} findings are listed, and {tally.beyond:,} more were found"
    whole = tally.judged + tally.unknown
    if tally.unknown and whole > 1 and not tally.unfinished:
        return f"not evaluated for {tally.unknown:,} of {counted(whole, rule.noun)} (first: {tally.first_unknown})"
    return tally.first_unknown


def _crash(item: SelectedRule, error: BaseException, found: Sequence[Finding]) -> _Result:
    finding = rule_crashed(item.rule, error, item.origin)
    return _Result(Status.CRASHED, (*found, finding), describe_error(error))


def _outcome(item: SelectedRule, result: _Result, seconds: float) -> Outcome:
    own = sum(1 for finding in result.findings if finding.code == item.rule.code)
    return Outcome(
        code=item.rule.code,
        name=item.rule.name,
        phase=item.rule.phase,
        status=result.status,
        findings=own,
        reason=result.reason,
        partial=bool(result.reason) and own > 0,
        explicit=item.explicit,
        lacks=result.lacks,
        pack=item.pack,
        seconds=seconds,
        unfinished=result.unfinished,
        judged=result.judged,
        unknown=result.unknown,
        noun=item.rule.noun,
        examined=result.examined,
    )


def _with_severity(finding: Finding, severity: Severity | None) -> Finding:
    if severity is None or finding.phase is Phase.ENGINE or finding.severity is severity:
        return finding
    return evolve(finding, severity=severity)


def matches_selector(rule: Rule, selector: str) -> bool:
    """Whether a gate's selector (ALL, a phase, `tag:` and a tag, a code or code prefix) covers `rule`."""
    if selector.startswith("tag:"):
        return selector.removeprefix("tag:") in rule.tags
    return selector in ("ALL", rule.phase.value) or rule.code.startswith(selector)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Report order: phase, code, subject (numbers as numbers), key, ... Independent of hash seeds and yield order."""
    placed = sorted(((_place(finding), finding) for finding in findings), key=itemgetter(0))
    ordered: list[Finding] = []
    for _, group in groupby(placed, key=itemgetter(0)):
        same = [item for _, item in group]
        ordered.extend(same if len(same) == 1 else sorted(same, key=_details))
    return ordered


def _place(item: Finding) -> tuple[Any, ...]:
    return (item.phase.order, item.code, natural_key(item.subject), item.key, item.ranks, item.message)


def _details(item: Finding) -> tuple[Any, ...]:
    """What tells findings of one place apart: costly, and rarely needed."""
    return (item.owner or "", item.kind.value, item.severity.order, repr(item.evidence))
