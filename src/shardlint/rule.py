"""Rules and findings: the vocabulary that the engine, the built-in pack and anybody's pack share."""

from __future__ import annotations

import enum
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs import field, frozen

from .facts import Facts, FrozenDict, Section, Unknown, known
from .facts import NotEvaluated as NotEvaluated  # noqa: PLC0414 - part of the vocabulary of this module

if TYPE_CHECKING:
    from .target import LiveTarget

CODE_PATTERN = re.compile(r"(?:[DV][0-9]{3}|[A-Z]{2,8}[0-9]{3})\Z")
GATE_PATTERN = re.compile(r"(?:ALL|[A-Z]{1,8}[0-9]{0,3}|tag:\S+)\Z")
NAME_PATTERN = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\Z")
PAGE_HEADINGS = ("What it does", "Why it is unsafe", "What to do")


class RuleDefinitionError(TypeError):
    """A rule class that breaks the rules for rules: bad code or name, missing page text, unknown phase."""


class Unfinished(NotEvaluated):
    """
    Raised by a heavy rule that was to do its work, and has not done all of it (a sample, an interrupted run).

    The text says why. A run with such a rule is never a PASS, whether the rule was selected by name or not.
    """


@functools.cache
def _positions(kind: type[enum.Enum]) -> dict[enum.Enum, int]:
    return {member: position for position, member in enumerate(kind)}


class _Ordered(enum.Enum):
    """An ordered enum that users write by value."""

    @classmethod
    def from_user(cls, text: str) -> Any:
        """Return the member that `text` names, in any case. Raises `ValueError` naming the valid values."""
        for member in cls:
            if str(member.value).lower() == text.strip().lower():
                return member
        valid = ", ".join(str(member.value) for member in cls)
        raise ValueError(f"expected one of {valid}, got {text!r}")

    @property
    def order(self) -> int:
        """Position in the definition: a larger one is later, or worse."""
        return _positions(type(self))[self]

    def __lt__(self, other: object) -> bool:
        return self.order < other.order if isinstance(other, type(self)) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.order <= other.order if isinstance(other, type(self)) else NotImplemented


class Severity(_Ordered):
    """How bad a finding is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Phase(_Ordered):
    """The part of a model's life that a rule looks at. `ENGINE` is for shardlint's own diagnostics."""

    ENGINE = "SL"
    D1 = "D1"
    D2 = "D2"
    D3 = "D3"
    D4 = "D4"
    D5 = "D5"
    D6 = "D6"
    D7 = "D7"
    V0 = "V0"

    @property
    def title(self) -> str:
        """The phase in words."""
        return _PHASE_TITLES[self.value]


_PHASE_TITLES = {
    "SL": "engine",
    "D1": "declarations",
    "D2": "structure",
    "D3": "ownership and sharding",
    "D4": "materialization",
    "D5": "checkpoint",
    "D6": "optimizer",
    "D7": "runtime",
    "V0": "validation",
}


class Cost(enum.Enum):
    """Light rules read facts; heavy rules read every weight and run only when asked for."""

    LIGHT = "light"
    HEAVY = "heavy"


class SubjectKind(enum.Enum):
    """What a finding is about."""

    TENSOR = "tensor"
    UNIT = "unit"
    MODULE = "module"
    KEY = "key"
    FILE = "file"
    CONFIG = "config"
    PATTERN = "pattern"
    FIELD = "field"
    RULE = "rule"
    PACK = "pack"
    RANK = "rank"
    MODEL = "model"


def _frozen_evidence(value: Mapping[str, Any] | None) -> FrozenDict:
    if isinstance(value, FrozenDict):
        return value
    try:
        return FrozenDict(value or {})
    except TypeError:
        return FrozenDict(_told(value))


def _told(value: Any) -> Any:
    """Evidence in which each fact that is not known is the text that says so: what was found is wrong without it."""
    if isinstance(value, Unknown):
        return f"unknown: {value.unknown}"
    if isinstance(value, Mapping):
        return {key: _told(member) for key, member in value.items()}
    return [_told(member) for member in value] if isinstance(value, (list, tuple)) else value


_FINDING_FIELDS: tuple[tuple[str, type], ...] = (
    ("code", str),
    ("name", str),
    ("phase", Phase),
    ("severity", Severity),
    ("subject", str),
    ("kind", SubjectKind),
    ("message", str),
    ("why", str),
    ("remediation", str),
    ("related_config", tuple),
    ("ranks", tuple),
    ("key", str),
)


@frozen(kw_only=True)
class Finding:
    """
    One defect: what is wrong with which subject, the evidence, why it is unsafe and what to do.

    `owner` is the FQN of the module or unit that owns the subject, when there is one. `ranks` are the ranks that
    the finding concerns, empty when it concerns every rank. `key` tells findings of one rule about one subject
    apart. Raises `ValueError` for an error without `why` or `remediation`, or without subject or message, and
    `TypeError` for a field of the wrong type or evidence that is no plain value.
    """

    code: str
    name: str
    phase: Phase
    severity: Severity
    subject: str
    kind: SubjectKind
    message: str
    evidence: FrozenDict = field(default=FrozenDict(), converter=_frozen_evidence)
    owner: str | None = None
    why: str = ""
    remediation: str = ""
    related_config: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    key: str = ""

    def __attrs_post_init__(self) -> None:
        # One loop instead of a validator for each field: a run may have a finding for each of 100,000 tensors.
        for name, kind in _FINDING_FIELDS:
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{self.code}: a finding's {name} must be {kind.__name__}, got {value!r}")
        if not all(isinstance(known(rank), int) for rank in self.ranks):
            raise TypeError(f"{self.code}: a finding's ranks must be integers, got {self.ranks!r}")
        if self.owner is not None and not isinstance(self.owner, str):
            raise TypeError(f"{self.code}: a finding's owner must be str or None, got {self.owner!r}")
        for name in ("subject", "message"):
            if not getattr(self, name):
                raise ValueError(f"{self.code}: a finding needs a {name}")
        if self.severity is Severity.ERROR and not (self.why.strip() and self.remediation.strip()):
            raise ValueError(f"{self.code}: an error needs both why and remediation")


@frozen(kw_only=True)
class Examined:
    """
    What a rule looked at, yielded among its findings by a rule that counts for itself.

    `judged` and `unknown` are numbers of subjects, `first_unknown` names the first unknown one and says why it is not
    known. `evidence` says in words what was compared with what.
    """

    judged: int
    unknown: int = 0
    first_unknown: str = ""
    evidence: str = ""


class _Whole:
    """Everything at once, as the subject of a rule that does not judge one thing at a time."""

    name = "the whole"

    def __repr__(self) -> str:
        return "WHOLE"


WHOLE = _Whole()


@frozen
class Page:
    """A rule's page: the summary line and its sections, from the docstring of the class."""

    summary: str
    sections: FrozenDict

    @classmethod
    def parse(cls, text: str) -> Page:
        """Split Markdown `text` at its second-level headings."""
        head, *parts = re.split(r"^## +(.+?) *$", inspect.cleandoc(text), flags=re.MULTILINE)
        sections = {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}
        return cls(head.strip(), FrozenDict(sections))


@frozen(kw_only=True)
class NoOptions:
    """The options of a rule that has none."""


class Rule:
    """
    One thing to look for. Subclass it, set the class attributes, write the page as the docstring.

    `subjects` names what the rule judges, and `judge` yields what is wrong with one of them. The engine counts: a rule
    is clean only when it judged at least one subject and every fact that it used was known; a subject that needs a
    fact that is not known makes it not evaluated for that subject. Without `subjects` the rule judges everything at
    once, as the one subject `WHOLE`. `noun` is what one subject is called, in the singular.

    `needs` are the sections without which the rule cannot be evaluated. `blocks` are selectors (codes, prefixes,
    phases, `tag:` and a tag) of rules that make no sense once this one found an error: such a rule is a gate.
    `options_type` is an attrs class with defaults for every field; the configured instance is `self.options`.

    A subclass with `abstract=True` in its class line is a base for rules, not a rule. Raises
    `RuleDefinitionError` when the class is created wrongly.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    phase: ClassVar[Phase]
    severity: ClassVar[Severity]
    cost: ClassVar[Cost] = Cost.LIGHT
    needs: ClassVar[tuple[Section, ...]] = ()
    blocks: ClassVar[tuple[str, ...]] = ()
    tags: ClassVar[tuple[str, ...]] = ()
    related_config: ClassVar[tuple[str, ...]] = ()
    since: ClassVar[str] = "0.1"
    options_type: ClassVar[type] = NoOptions
    noun: ClassVar[str] = "subject"
    page: ClassVar[Page]

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.options_type()

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not abstract:
            _validate(cls)

    def subjects(self, facts: Facts) -> Iterable[Any]:
        """
        Yield what the rule judges, each subject with what `judge` needs to know about it.

        None at all means that there is nothing to judge, which is not the same as clean. What raises `UnknownFact`
        here makes the whole rule not evaluated.
        """
        return (WHOLE,)

    def judge(self, subject: Any, facts: Facts) -> Iterable[Finding | Examined]:
        """
        Yield what is wrong with one subject.

        Raise `NotEvaluated` when a fact is missing that decides; a fact that is `Unknown` raises by itself.
        """
        return self.check(facts)

    def check(self, facts: Facts) -> Iterable[Finding | Examined]:
        """Yield what is wrong with everything at once: the short form of `judge`, for a rule with one subject."""
        raise NotImplementedError(f"{type(self).__name__} defines neither judge() nor check()")

    def subject_name(self, subject: Any) -> str:
        """What a subject is called where the report says that it was not judged."""
        if isinstance(subject, Unknown):
            return f"a {self.noun}"
        for name in ("fqn", "name", "key", "path", "glob"):
            text = getattr(subject, name, None)
            if isinstance(text, str):
                return text or "<root>"
        if isinstance(subject, tuple) and subject:
            return self.subject_name(subject[0])
        return subject if isinstance(subject, str) else repr(subject)

    def finding(
        self,
        *,
        subject: str,
        message: str,
        kind: SubjectKind = SubjectKind.TENSOR,
        evidence: Mapping[str, Any] | None = None,
        owner: str | None = None,
        severity: Severity | None = None,
        why: str | None = None,
        remediation: str | None = None,
        ranks: Iterable[int] = (),
        key: str = "",
    ) -> Finding:
        """
        Build a finding of this rule; why and remediation come from the rule's page unless given.

        A subject without visible characters (a tensor may be named so) is shown in quotes.
        """
        return Finding(
            code=self.code,
            name=self.name,
            phase=self.phase,
            severity=severity or self.severity,
            subject=_quoted(subject),
            kind=kind,
            message=message,
            evidence=evidence,
            owner=owner,
            why=why if why is not None else str(self.page.sections["Why it is unsafe"]),
            remediation=remediation if remediation is not None else str(self.page.sections["What to do"]),
            related_config=self.related_config,
            ranks=tuple(ranks),
            key=key,
        )


def _quoted(subject: Any) -> Any:
    """The subject, in quotes when nothing of it shows; what is no text is left to the check of `Finding`."""
    return repr(subject) if isinstance(subject, str) and not subject.strip() else subject


class HeavyRule(Rule, abstract=True):
    """A rule that reads weights: evaluated only when asked for, with the live target at hand."""

    cost = Cost.HEAVY

    def unready(self, facts: Facts, live: LiveTarget) -> str:
        """
        What this rank lacks to begin with, in plain words; empty when it can begin.

        The ranks of a job run a heavy rule together, so that one which cannot begin keeps the others from waiting.
        """
        return ""

    def check_live(self, facts: Facts, live: LiveTarget) -> Iterator[Finding | Examined]:
        """
        Yield what is wrong. `live` gives access to the model and the checkpoint files.

        Yield one `Examined` as well, so that the report can say what was compared; without one, everything counts as
        one subject. Raise `Unfinished` when only a part was looked at.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no check_live()")


def _validate(cls: type[Rule]) -> None:
    def need(condition: bool, text: str) -> None:
        if not condition:
            raise RuleDefinitionError(f"rule {cls.__module__}.{cls.__qualname__}: {text}")

    wanted: tuple[tuple[str, type], ...] = (("code", str), ("name", str), ("phase", Phase), ("severity", Severity))
    for name, kind in wanted:
        value = getattr(cls, name, None)
        need(isinstance(value, kind), f"{name} must be a {kind.__name__}, got {value!r}")
    need(bool(CODE_PATTERN.match(cls.code)), f"code {cls.code!r} is not a prefix of capitals and three digits")
    need(bool(NAME_PATTERN.match(cls.name)), f"name {cls.name!r} is not lower-case words joined by hyphens")
    need(isinstance(cls.cost, Cost), f"cost must be a Cost, got {cls.cost!r}")
    members: tuple[tuple[str, type], ...] = (
        ("needs", Section),
        ("blocks", str),
        ("tags", str),
        ("related_config", str),
    )
    for name, member in members:
        value = getattr(cls, name)
        good = isinstance(value, tuple) and all(isinstance(item, member) for item in value)
        need(good, f"{name} must be a tuple of {member.__name__}, got {value!r}")
    for selector in cls.blocks:
        need(
            bool(GATE_PATTERN.match(selector)),
            f"blocks takes ALL, phases, codes, code prefixes and tags (tag:...), got {selector!r}",
        )
    for name in ("since", "noun"):
        need(isinstance(getattr(cls, name), str), f"{name} must be a str, got {getattr(cls, name)!r}")
    _validate_behaviour(cls, need)
    need(bool(cls.__doc__), "it has no docstring, and the docstring is the rule's page")
    cls.page = Page.parse(cls.__doc__ or "")
    missing = [heading for heading in PAGE_HEADINGS if not cls.page.sections.get(heading)]
    need(bool(cls.page.summary) and not missing, f"its page lacks {', '.join(missing) or 'a summary'}")


def _validate_behaviour(cls: type[Rule], need: Callable[[bool, str], None]) -> None:
    if issubclass(cls, HeavyRule):
        need(cls.check_live is not HeavyRule.check_live, "it defines no check_live()")
        need(cls.cost is Cost.HEAVY, "a HeavyRule has cost HEAVY")
    else:
        need(cls.check is not Rule.check or cls.judge is not Rule.judge, "it defines neither judge() nor check()")
        need(cls.subjects is Rule.subjects or cls.judge is not Rule.judge, "it defines subjects() and no judge()")
    kind = cls.options_type
    need(attrs.has(kind), f"options_type must be an attrs class, got {kind!r}")
    required = [item.name for item in attrs.fields(kind) if item.init and item.default is attrs.NOTHING]
    need(not required, f"every option needs a default; {', '.join(required)} has none")
