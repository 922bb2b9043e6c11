"""Evaluate rules over facts: each rule by itself, its outcome told, its crash a finding of its own."""

from __future__ import annotations

import enum
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from .diagnostics import rule_crashed
from .facts import Facts, Section
from .facts.codec import decode_facts, encode_facts
from .names import natural_key
from .rule import Cost, Finding, HeavyRule, NotEvaluated, Phase, Rule, Severity

if TYPE_CHECKING:
    from .live import LiveTarget

BUILTIN_PACK = "shardlint"


class Status(enum.Enum):
    """What became of a rule in a run."""

    CLEAN = "clean"
    FOUND = "found"
    NOT_EVALUATED = "not-evaluated"
    BLOCKED = "blocked"
    CRASHED = "crashed"
    LEFT_OUT = "left-out"


@frozen(kw_only=True)
class SelectedRule:
    """
    A rule that is to run, with what the selection decided about it.

    `explicit` is true when it was selected by its exact code or name; `severity` overrides that of its findings;
    `pack` and `pack_version` say where it comes from, for diagnostics.
    """

    rule: Rule
    explicit: bool = False
    severity: Severity | None = None
    pack: str = BUILTIN_PACK
    pack_version: str = ""
    pack_root: str = ""


@frozen(kw_only=True)
class Outcome:
    """
    What became of one rule. `reason` says what was missing, which gate blocked, or how it crashed.

    `lacks` are the sections that the rule needs and the facts do not have.
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


@frozen(kw_only=True)
class Evaluation:
    """Findings in report order, and the outcome of every selected rule in the order of evaluation."""

    findings: tuple[Finding, ...]
    outcomes: tuple[Outcome, ...]


class _RubbishError(TypeError):
    """A rule yielded something that is no finding of its own."""


class _ChangedInputError(RuntimeError):
    """A rule changed the facts that it was given."""


def evaluate(
    facts: Facts,
    rules: Iterable[SelectedRule],
    *,
    heavy: bool = False,
    live: LiveTarget | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Evaluation:
    """
    Evaluate `rules` over `facts`, gates first within their phase.

    Heavy rules run when `heavy` is set or they were selected explicitly; else their outcome is left-out. A rule
    that raises, exits, yields rubbish or changes the facts gives an SL001 finding and the outcome crashed; every
    other rule is evaluated all the same.
    """
    ordered = sorted(rules, key=lambda item: (item.rule.phase, not item.rule.blocks, item.rule.code))
    if all(item.pack == BUILTIN_PACK for item in ordered):
        return _evaluate_all(facts, ordered, heavy=heavy, live=live, clock=clock, watch=False)
    before = encode_facts(facts)
    digest = hashlib.blake2b(before).digest()
    result = _evaluate_all(facts, ordered, heavy=heavy, live=live, clock=clock, watch=False)
    if hashlib.blake2b(encode_facts(facts)).digest() == digest:
        return result
    # Some rule changed the facts, so no outcome of this pass can be trusted: again, on a fresh copy, watching each.
    return _evaluate_all(decode_facts(before), ordered, heavy=heavy, live=live, clock=clock, watch=True)


def _evaluate_all(
    facts: Facts,
    ordered: Sequence[SelectedRule],
    *,
    heavy: bool,
    live: LiveTarget | None,
    clock: Callable[[], float],
    watch: bool,
) -> Evaluation:
    findings: list[Finding] = []
    outcomes: list[Outcome] = []
    gates: dict[str, str] = {}
    pristine = encode_facts(facts) if watch else b""
    for item in ordered:
        started = clock()
        status, found, reason = _evaluate_one(facts, item, gates, heavy=heavy, live=live)
        if watch and encode_facts(facts) != pristine:
            facts = decode_facts(pristine)
            error = _ChangedInputError("it changed the facts, which are frozen; its findings are not used")
            status, reason = Status.CRASHED, str(error)
            found = [rule_crashed(item, error)]
        if any(finding.severity is Severity.ERROR and finding.code == item.rule.code for finding in found):
            gates.update(dict.fromkeys(item.rule.blocks, item.rule.code))
        outcome = _outcome(item, status, found, reason, clock() - started)
        outcomes.append(evolve(outcome, lacks=_absent(facts, item.rule)) if status is Status.NOT_EVALUATED else outcome)
        findings.extend(_with_severity(finding, item.severity) for finding in found)
    return Evaluation(findings=tuple(sort_findings(findings)), outcomes=tuple(outcomes))


def _outcome(item: SelectedRule, status: Status, found: Sequence[Finding], reason: str, seconds: float) -> Outcome:
    own = sum(1 for finding in found if finding.code == item.rule.code)
    return Outcome(
        code=item.rule.code,
        name=item.rule.name,
        phase=item.rule.phase,
        status=status,
        findings=own,
        reason=reason,
        partial=bool(reason) and own > 0,
        explicit=item.explicit,
        pack=item.pack,
        seconds=seconds,
    )


def _evaluate_one(
    facts: Facts, item: SelectedRule, gates: dict[str, str], *, heavy: bool, live: LiveTarget | None
) -> tuple[Status, list[Finding], str]:
    rule = item.rule
    if rule.cost is Cost.HEAVY and not (heavy or item.explicit):
        return Status.LEFT_OUT, [], "a heavy rule: ask for it with --heavy or by its exact code or name"
    gate = next((code for selector, code in gates.items() if matches_selector(rule, selector)), None)
    if gate:
        return Status.BLOCKED, [], f"blocked by {gate}"
    absent = _absent(facts, rule)
    if absent:
        return Status.NOT_EVALUATED, [], "; ".join(facts.why_absent(section) for section in absent)
    return _run(facts, item, live)


def _absent(facts: Facts, rule: Rule) -> tuple[Section, ...]:
    return tuple(section for section in rule.needs if not facts.has(section))


def _run(facts: Facts, item: SelectedRule, live: LiveTarget | None) -> tuple[Status, list[Finding], str]:
    found: list[Finding] = []
    try:
        for finding in _findings_of(facts, item.rule, live):
            found.append(_checked(finding, item.rule))
    except NotEvaluated as why:
        return (Status.FOUND if found else Status.NOT_EVALUATED), found, str(why)
    except (Exception, SystemExit) as error:
        return Status.CRASHED, [*found, rule_crashed(item, error)], f"{type(error).__name__}: {error}"
    return (Status.FOUND if found else Status.CLEAN), found, ""


def _findings_of(facts: Facts, rule: Rule, live: LiveTarget | None) -> Iterator[Finding]:
    if not isinstance(rule, HeavyRule):
        result = rule.check(facts)
    elif live is None:
        raise NotEvaluated("it needs the live model and its checkpoint, and facts alone were given")
    else:
        result = rule.check_live(facts, live)
    if not isinstance(result, Iterable):
        raise _RubbishError(f"check() must return or yield findings, it returned {type(result).__name__}")
    yield from result


def _checked(finding: object, rule: Rule) -> Finding:
    if not isinstance(finding, Finding):
        raise _RubbishError(f"check() must yield Finding objects, it yielded {type(finding).__name__}")
    if finding.code != rule.code:
        raise _RubbishError(f"check() must yield findings of {rule.code}, it yielded one of {finding.code}")
    return finding


def _with_severity(finding: Finding, severity: Severity | None) -> Finding:
    if severity is None or finding.phase is Phase.ENGINE or finding.severity is severity:
        return finding
    return evolve(finding, severity=severity)


def matches_selector(rule: Rule, selector: str) -> bool:
    """Whether a gate's selector (ALL, a phase, a code or code prefix) covers `rule`."""
    return selector in ("ALL", rule.phase.value) or rule.code.startswith(selector)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Report order: phase, code, subject (numbers as numbers), key, message. Independent of hash seeds."""
    return sorted(
        findings,
        key=lambda item: (item.phase, item.code, natural_key(item.subject), item.key, item.ranks, item.message),
    )
