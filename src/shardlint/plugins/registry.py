"""What the loaded packs bring: rules, collectors, contract providers and reporters, each with its origin."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attrs import field, fields, frozen

from ..diagnostics import PackOrigin, describe_error, last_frame
from ..rule import Cost, Finding, Phase, Rule, Severity

if TYPE_CHECKING:
    from ..contract import Contract, ContractQuery


class PackState(enum.Enum):
    """What became of a pack. A failed pack may still bring what its sound hooks returned."""

    LOADED = "loaded"
    DISABLED = "disabled"
    FAILED = "failed"


@frozen(kw_only=True)
class PackStatus:
    """
    One pack that was found. `location` is its entry point's value or its path; `error` says how it failed.

    `api` and `prefix` are None where the pack did not get as far as saying them.
    """

    name: str
    dist: str = ""
    version: str = ""
    api: int | None = None
    prefix: str | None = None
    status: PackState
    location: str = ""
    error: str = ""
    rules: int = 0
    docs_url: str = ""
    issues_url: str = ""


@frozen(kw_only=True)
class RegisteredRule(PackOrigin):
    """A rule class that may be selected, and where it comes from."""

    rule_class: type[Rule]

    @property
    def code(self) -> str:
        """The rule's code."""
        return self.rule_class.code

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule_class.name

    @property
    def phase(self) -> Phase:
        """The rule's phase."""
        return self.rule_class.phase

    @property
    def severity(self) -> Severity:
        """The rule's own severity, which settings may override."""
        return self.rule_class.severity

    @property
    def tags(self) -> tuple[str, ...]:
        """The rule's tags."""
        return self.rule_class.tags

    @property
    def heavy(self) -> bool:
        """Whether the rule reads weights, so that it runs only when asked for."""
        return self.rule_class.cost is Cost.HEAVY


@frozen(kw_only=True)
class RegisteredCollector(PackOrigin):
    """A pack's collector: `section` is the facts section that its `collect` adds to."""

    name: str
    section: str
    collector: Any = field(eq=False)

    def collect(self, *arguments: Any) -> Any:
        """Call the collector. What it raises is the caller's to isolate."""
        return self.collector.collect(*arguments)


@frozen(kw_only=True)
class RegisteredReporter(PackOrigin):
    """A pack's output format."""

    name: str
    reporter: Callable[..., Any] = field(eq=False)

    def __call__(self, *arguments: Any) -> Any:
        """Write a report. What it raises is the caller's to isolate."""
        return self.reporter(*arguments)


@frozen(kw_only=True)
class ContractProvider(PackOrigin):
    """A pack's implementation of `shardlint_contracts`; `call` takes the query."""

    call: Callable[[ContractQuery], object] = field(eq=False)
    frame: str = ""


@frozen(kw_only=True)
class ContractAnswer(PackOrigin):
    """
    What one provider answered: a contract, or how it failed (`error`, one sentence; `frame`, the place in the pack).
    """

    contract: Contract | None = None
    error: str = ""
    frame: str = ""


@frozen(kw_only=True)
class Registry:
    """Everything the packs bring. `diagnostics` are the SL002 and SL008 findings that loading gave."""

    rules: tuple[RegisteredRule, ...] = ()
    packs: tuple[PackStatus, ...] = ()
    diagnostics: tuple[Finding, ...] = ()
    collectors: tuple[RegisteredCollector, ...] = ()
    reporters: Mapping[str, RegisteredReporter] = field(default=MappingProxyType({}), eq=False)
    providers: tuple[ContractProvider, ...] = ()

    def rule(self, code_or_name: str) -> RegisteredRule | None:
        """The rule with that exact code (in any case) or name, None when there is none."""
        wanted = code_or_name.strip()
        matching = (rule for rule in self.rules if wanted.upper() == rule.code or wanted.lower() == rule.name)
        return next(matching, None)

    def failures(self) -> tuple[str, ...]:
        """A line for each thing that went wrong with a pack: a rule that nobody knows may be missing because of it."""
        lines = []
        for finding in self.diagnostics:
            frame = finding.evidence.get("frame")
            lines.append(f"{finding.code} {finding.message}" + (f" at {frame}" if frame else ""))
        return tuple(lines)

    def contracts(self, query: ContractQuery) -> tuple[ContractAnswer, ...]:
        """
        Ask every provider by itself. Those that answer None are left out; one that fails is an answer with an error.
        """
        answers = (_ask(provider, query) for provider in self.providers)
        return tuple(answer for answer in answers if answer is not None)


def _ask(provider: ContractProvider, query: ContractQuery) -> ContractAnswer | None:
    from ..contract import Contract

    who = f"the contract provider of pack {provider.label}"
    try:
        result = provider.call(query)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frame = last_frame(error, provider.root) or provider.frame
        return _answer(provider, error=f"{who} raised {describe_error(error)}", frame=frame)
    if result is None:
        return None
    if isinstance(result, Contract):
        return _answer(provider, contract=result)
    wrong = f"{who} returned {type(result).__name__}, expected a shardlint.contract.Contract or None"
    return _answer(provider, error=wrong, frame=provider.frame)


def _answer(origin: PackOrigin, **parts: Any) -> ContractAnswer:
    return ContractAnswer(**origin_fields(origin), **parts)


def origin_fields(origin: PackOrigin) -> dict[str, Any]:
    """The fields of an `PackOrigin` (or of something that has one), to build another of its kind."""
    return {attribute.name: getattr(origin, attribute.name) for attribute in fields(PackOrigin)}
