"""
Suppressions: known findings that are not shown, each with its reason, kept in the report all the same.

A suppression names a rule (or several) by exact code or name and a subject by a glob over dotted segments: `*` is one
segment or a part of one, `**` any number of segments, none included, so `layers.**` covers `layers` and everything
below it, and `**` every subject. Subjects that are checkpoint keys or file names are split at their dots in the same
way: `model-*.safetensors` matches `model-00001-of-00002.safetensors`, and `*` alone does not.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from attrs import frozen

from ..diagnostics import DIAGNOSTICS, diagnostic
from ..names import counted, did_you_mean, glob_matches
from ..rule import CODE_PATTERN, NAME_PATTERN, Finding, SubjectKind
from .runner import Outcome, Status
from .source import DEFAULT, SettingSource

if TYPE_CHECKING:
    from ..plugins.registry import RegisteredRule

_NAMES = {item.code: item.name for item in DIAGNOSTICS.values()}
_ENGINE = {*_NAMES, *_NAMES.values()}
_NEVER = {text for item in DIAGNOSTICS.values() if not item.suppressible for text in (item.code, item.name)}


class State(enum.Enum):
    """What became of a suppression in a run. `NOT_JUDGED`: it matched nothing, but its rule did not fully run."""

    ACTIVE = "active"
    UNUSED = "unused"
    NOT_JUDGED = "not-judged"
    EXPIRED = "expired"
    OVER_BROAD = "over-broad"
    UNKNOWN = "unknown"


def check_rule(text: str) -> str:
    """
    Return `text` if a suppression may name it: an exact code or name.

    Raises `ValueError` for a prefix, a phase or ALL, and for diagnostics that can never be suppressed.
    """
    if not (CODE_PATTERN.match(text) or NAME_PATTERN.match(text)):
        raise ValueError(f"expected the exact code or name of a rule, got {text!r}")
    if text in _NEVER:
        raise ValueError(f"expected a rule that can be suppressed, got {text!r}, which never can")
    return text


@frozen(kw_only=True)
class SuppressedFinding:
    """A finding that a suppression hides: its reason, and where the suppression stands (`file:line`)."""

    finding: Finding
    reason: str
    source: str
    expires: str | None = None


@frozen(kw_only=True)
class Suppression:
    """
    One suppression. `expires` is the last day on which it holds; `expect` the most findings that it may hide.

    Raises `ValueError` when there is no rule, subject or reason, for a rule that is not an exact code or name or can
    never be suppressed, and for an `expect` below 1.
    """

    rules: tuple[str, ...]
    subject: str
    reason: str
    expires: date | None = None
    expect: int | None = None
    source: SettingSource = DEFAULT

    def __attrs_post_init__(self) -> None:
        if not self.rules:
            raise ValueError("expected at least one rule, got none")
        for name in ("subject", "reason"):
            if not getattr(self, name).strip():
                raise ValueError(f"expected a {name}, got an empty one")
        if self.expect is not None and self.expect < 1:
            raise ValueError(f"expected expect to be at least 1, got {self.expect}")
        for rule in self.rules:
            check_rule(rule)

    def covers(self, finding: Finding) -> bool:
        """Whether it names the finding's rule and its glob matches the subject."""
        return (finding.code in self.rules or finding.name in self.rules) and glob_matches(
            self.subject, finding.subject
        )

    def expired(self, today: date) -> bool:
        """Whether its last day has passed."""
        return self.expires is not None and today > self.expires

    @property
    def about_suppressions(self) -> bool:
        """Whether it names an engine diagnostic, and so is judged after the suppressions that these are about."""
        return any(rule in _ENGINE for rule in self.rules)

    @property
    def label(self) -> str:
        """Rules and subject on one line, the subject of diagnostics about it."""
        return f"{','.join(self.rules)} {self.subject}"


@frozen(kw_only=True)
class SuppressionState:
    """A suppression, its state, how many findings it matched, and the rules of it that no pack has."""

    suppression: Suppression
    state: State
    matched: int = 0
    unknown: tuple[str, ...] = ()


@frozen(kw_only=True)
class Suppressed:
    """
    What suppressions made of the findings.

    `visible` are the findings to show, in their order; `suppressed` those that are hidden; `diagnostics` the
    visible SL003 to SL006 findings about the suppressions; `states` one entry for each suppression, in their order.
    """

    visible: tuple[Finding, ...]
    suppressed: tuple[SuppressedFinding, ...] = ()
    diagnostics: tuple[Finding, ...] = ()
    states: tuple[SuppressionState, ...] = ()


@frozen
class _Matching:
    """What suppressions are judged by: the rules that fully ran, and those that exist (None when unknown)."""

    ran: frozenset[str]
    known: Mapping[str, str] | None
    today: date

    def unknown(self, suppression: Suppression) -> tuple[str, ...]:
        known = self.known
        return () if known is None else tuple(rule for rule in suppression.rules if rule not in known)

    def judges(self, suppression: Suppression) -> bool:
        return all(rule in self.ran for rule in suppression.rules if rule not in self.unknown(suppression))

    def state(self, suppression: Suppression, matched: int) -> State:
        """The state of a suppression that matched so many findings. Expiry is told first: it holds for every run."""
        if suppression.expired(self.today):
            return State.EXPIRED
        if suppression.expect is not None and matched > suppression.expect:
            return State.OVER_BROAD
        if matched:
            return State.ACTIVE
        if len(self.unknown(suppression)) == len(suppression.rules):
            return State.UNKNOWN
        return State.UNUSED if self.judges(suppression) else State.NOT_JUDGED


def apply_suppressions(
    findings: Iterable[Finding],
    suppressions: Sequence[Suppression],
    outcomes: Iterable[Outcome],
    today: date,
    rules: Sequence[RegisteredRule] | None = None,
) -> Suppressed:
    """
    Hide the findings that valid suppressions cover, and say what became of every suppression.

    A suppression is unused only when all its rules ran with the facts they need (`outcomes`); it is unknown only
    when `rules`, all rules that are loaded, are given. An expired or over-broad one hides nothing. Suppressions of
    SL003 and SL006 are applied to the diagnostics about the other suppressions.
    """
    run = _Matching(_fully_ran(outcomes), _known(rules), today)
    all_findings = list(findings)
    judged = {
        at: _judge(run, suppression, all_findings)
        for at, suppression in enumerate(suppressions)
        if not suppression.about_suppressions
    }
    about = [finding for state in judged.values() for finding in _diagnostics(state, run)]
    own = {
        at: _judge(run, suppression, [*all_findings, *about])
        for at, suppression in enumerate(suppressions)
        if suppression.about_suppressions
    }
    about += [finding for state in own.values() for finding in _diagnostics(state, run)]
    states = tuple(state for _, state in sorted((judged | own).items()))
    visible, hidden = _split(all_findings, states)
    shown, more = _split(about, states)
    return Suppressed(visible=tuple(visible), suppressed=(*hidden, *more), diagnostics=tuple(shown), states=states)


def _fully_ran(outcomes: Iterable[Outcome]) -> frozenset[str]:
    full = [outcome for outcome in outcomes if outcome.status in (Status.CLEAN, Status.FOUND) and not outcome.partial]
    return frozenset(text for rule in full for text in (rule.code, rule.name))


def _known(rules: Sequence[RegisteredRule] | None) -> dict[str, str] | None:
    if rules is None:
        return None
    pairs = {rule.rule_class.code: rule.rule_class.name for rule in rules} | _NAMES
    return pairs | {name: code for code, name in pairs.items()}


def _judge(run: _Matching, suppression: Suppression, findings: Sequence[Finding]) -> SuppressionState:
    matched = sum(1 for finding in findings if suppression.covers(finding))
    return SuppressionState(
        suppression=suppression,
        state=run.state(suppression, matched),
        matched=matched,
        unknown=run.unknown(suppression),
    )


def _split(
    findings: Sequence[Finding], states: Sequence[SuppressionState]
) -> tuple[list[Finding], list[SuppressedFinding]]:
    active = [state.suppression for state in states if state.state is State.ACTIVE]
    visible: list[Finding] = []
    hidden: list[SuppressedFinding] = []
    for finding in findings:
        by = next((suppression for suppression in active if suppression.covers(finding)), None)
        if by is None:
            visible.append(finding)
        else:
            expires = by.expires.isoformat() if by.expires else None
            hidden.append(SuppressedFinding(finding=finding, reason=by.reason, source=str(by.source), expires=expires))
    return visible, hidden


def _diagnostics(state: SuppressionState, run: _Matching) -> Iterable[Finding]:
    suppression = state.suppression
    for rule in state.unknown:
        hint = did_you_mean(rule, run.known or ())
        yield _about(state, "SL006", f"names the rule {rule!r}, which no loaded pack has{hint}", key=rule)
    if state.state is State.UNUSED:
        yield _about(state, "SL003", "matched nothing although its rule ran with the facts it needs")
    elif state.state is State.EXPIRED and suppression.expires is not None:
        days, back = counted((run.today - suppression.expires).days, "day"), counted(state.matched, "finding")
        yield _about(state, "SL004", f"expired on {suppression.expires} ({days} ago); {back} came back")
    elif state.state is State.OVER_BROAD:
        count = counted(state.matched, "finding")
        yield _about(state, "SL005", f"matched {count}, it expects at most {suppression.expect}; all of them are shown")


def _about(state: SuppressionState, code: str, what: str, key: str = "") -> Finding:
    suppression = state.suppression
    evidence = {
        "source": str(suppression.source),
        "rules": suppression.rules,
        "subject": suppression.subject,
        "reason": suppression.reason,
        "matched": state.matched,
        "expect": suppression.expect,
        "expires": suppression.expires.isoformat() if suppression.expires else None,
    }
    return diagnostic(
        code,
        subject=suppression.label,
        message=f"the suppression at {suppression.source} {what}",
        kind=SubjectKind.CONFIG,
        evidence={name: value for name, value in evidence.items() if value is not None},
        key=key,
    )
