"""
Which rules run, at which severity, and which setting decided it.

Selectors: `ALL`; a phase (`D3`, `phase:D3`); a tag (`tag:moe`, or `moe` where nothing else has that name); a pack
(`pack:acme`, or `acme`); a code prefix (`D30`); a code (`D302`) or a name (`mixed-gradient-domain`).

Settings come in layers, the lowest first: the default (select ALL), each file that is extended, the file, the command
line. The most specific selector decides: code or name, then the longer prefix (a phase counts as a prefix of its
length), then pack, then tag, then ALL. Between equally specific ones the higher layer decides, and within one layer
ignore does. A layer with `select` replaces the lower ones: what lower layers select, ignore or switch off is
forgotten, the severities that they give stay. `severity: off` counts as ignore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from ..diagnostics import DIAGNOSTICS, diagnostic
from ..plugins.registry import RegisteredRule
from ..rule import Finding, Severity
from .runner import SelectedRule, to_selected
from .selectors import Selectors, UnknownSelectorError
from .source import DEFAULT, SettingSource
from .wishes import Wish

if TYPE_CHECKING:
    from ..plugins.registry import Registry


class SelectionError(Exception):
    """Settings that select nothing, or name what no loaded pack has. `problems` has one sentence for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@frozen
class Item:
    """One selector and where it was written."""

    selector: str
    source: SettingSource


@frozen
class SeverityItem:
    """The severity that a selector's rules get; None is off."""

    selector: str
    severity: Severity | None
    source: SettingSource


@frozen(kw_only=True)
class Layer:
    """The selection settings of one origin. `select` None edits what lower layers say; otherwise it replaces them."""

    select: tuple[Item, ...] | None = None
    extend_select: tuple[Item, ...] = ()
    ignore: tuple[Item, ...] = ()
    severity: tuple[SeverityItem, ...] = ()
    select_source: SettingSource = DEFAULT


DEFAULT_LAYER = Layer(select=(Item("ALL", DEFAULT),))


@frozen(kw_only=True)
class Decision:
    """
    What was decided about one rule. `selector` is the deciding selector, empty when none matched the rule.

    `explicit`: it is enabled by its exact code or name. `severity` is None when the rule's own holds;
    `severity_from` says who set it.
    """

    rule: RegisteredRule
    enabled: bool
    explicit: bool
    severity: Severity | None
    decided_by: str
    selector: str
    severity_from: str = ""

    def selected(self, options: Mapping[str, Any] | None = None) -> SelectedRule:
        """The rule ready to run, with its options from `options` (code to an instance of its options class)."""
        chosen = (options or {}).get(self.rule.rule_class.code)
        return to_selected(self.rule, explicit=self.explicit, severity=self.severity, options=chosen)


@frozen(kw_only=True)
class Selection:
    """
    The decision about every rule in the order given, and SL006 for what `ignore` names in vain.

    `engine` holds what was decided about engine diagnostics: code to severity, None for ignored. `wishes` are the
    selectors by which a user asked for rules, other than ALL and those that name one rule exactly.
    """

    decisions: tuple[Decision, ...]
    diagnostics: tuple[Finding, ...] = ()
    engine: Mapping[str, Severity | None] = field(factory=dict)
    wishes: tuple[Wish, ...] = ()

    def to_run(self, options: Mapping[str, Any] | None = None) -> tuple[SelectedRule, ...]:
        """The enabled rules, ready for the runner."""
        return tuple(decision.selected(options) for decision in self.decisions if decision.enabled)

    def adjust(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """The findings without the engine diagnostics that are ignored, the others with their configured severity."""
        ignored = {code for code, severity in self.engine.items() if severity is None}
        return tuple(self._adjusted(finding) for finding in findings if finding.code not in ignored)

    def _adjusted(self, finding: Finding) -> Finding:
        severity = self.engine.get(finding.code)
        return finding if severity is None else evolve(finding, severity=severity)


@frozen
class _Vote:
    """One setting that applies to a rule. Votes compare by specificity, layer, and ignore over select."""

    specificity: int
    layer: int
    off: bool
    exact: bool
    item: Item | SeverityItem

    @property
    def rank(self) -> tuple[int, int, bool]:
        return (self.specificity, self.layer, self.off)


def _place(where: str, source: SettingSource) -> str:
    """`shardlint.yaml:2:11: lint.select[0]` as in every other error of a file, or the flag."""
    if not source.file:
        return str(source)
    place = f"{source}:{source.column}" if source.line and source.column else str(source)
    return f"{place}: {source.text or where}"


class _Ballot:
    """The votes of all layers, by rule code; collects problems and diagnostics on the way."""

    def __init__(self, index: Selectors, layers: Sequence[Layer]) -> None:
        self.index = index
        self.problems: list[str] = []
        self.diagnostics: list[Finding] = []
        self.engine: dict[str, Severity | None] = {}
        self.switches: dict[str, list[_Vote]] = {}
        self.severities: dict[str, list[_Vote]] = {}
        self.layers = layers
        self.wishes: list[Wish] = []
        self.base = max(number for number, layer in enumerate(layers) if layer.select is not None)
        for number, layer in enumerate(layers):
            self._read(number, layer)

    def _read(self, number: int, layer: Layer) -> None:
        for level in layer.severity:
            self._vote(number, "severity", level, off=level.severity is None)
        lists = (("select", layer.select or (), False), ("extend-select", layer.extend_select, False))
        for where, items, off in (*lists, ("ignore", layer.ignore, True)):
            for entry in items:
                self._vote(number, where, entry, off=off)

    def _vote(self, number: int, where: str, entry: Item | SeverityItem, *, off: bool) -> None:
        forgotten = number < self.base and (where != "severity" or off)
        if self._is_engine(where, entry, forgotten=forgotten):
            return
        try:
            match = self.index.resolve(entry.selector)
        except UnknownSelectorError as why:
            self._unknown(where, entry, str(why))
            return
        if forgotten:
            return
        if where in ("select", "extend-select") and entry.selector != "ALL" and not match.exact and number:
            self.wishes.append(Wish(selector=entry.selector, source=str(entry.source), codes=match.codes))
        votes = self.severities if where == "severity" else self.switches
        vote = _Vote(match.specificity, number, off, match.exact, entry)
        for code in match.codes:
            votes.setdefault(code, []).append(vote)

    def _unknown(self, where: str, entry: Item | SeverityItem, why: str) -> None:
        if where != "ignore":
            self.problems.append(f"{_place(where, entry.source)}: {why}")
            return
        self.diagnostics.append(
            diagnostic(
                "SL006",
                subject=entry.selector,
                message=f"{_place(where, entry.source)}: {why}",
                evidence={"source": str(entry.source), "setting": where},
                key=where,
            )
        )

    def _is_engine(self, where: str, entry: Item | SeverityItem, *, forgotten: bool) -> bool:
        """Whether `item` names an engine diagnostic; if so it is dealt with here."""
        diagnostic = next((d for d in DIAGNOSTICS.values() if entry.selector in (d.code, d.name)), None)
        if diagnostic is None:
            return False
        place = _place(where, entry.source)
        if where in ("select", "extend-select"):
            self.problems.append(f"{place}: {diagnostic.code} {diagnostic.name} is always on")
        elif not diagnostic.suppressible:
            self.problems.append(f"{place}: {diagnostic.code} {diagnostic.name} can neither be ignored nor changed")
        elif not forgotten:
            self.engine[diagnostic.code] = entry.severity if isinstance(entry, SeverityItem) else None
        return True

    def decide(self, rule: RegisteredRule) -> Decision:
        code = rule.rule_class.code
        votes = list(self.switches.get(code, ()))
        severity = max(self.severities.get(code, ()), key=lambda vote: vote.rank, default=None)
        if severity is not None and severity.off:
            votes.append(severity)
        best = max(votes, key=lambda vote: vote.rank, default=None)
        level = severity.item if severity is not None and not severity.off else None
        source = best.item.source if best else self.layers[self.base].select_source
        return Decision(
            rule=rule,
            enabled=best is not None and not best.off,
            explicit=best is not None and best.exact and not best.off,
            severity=level.severity if isinstance(level, SeverityItem) else None,
            decided_by=str(source),
            selector=best.item.selector if best else "",
            severity_from=str(level.source) if level else "",
        )


def select_rules(rules: Sequence[RegisteredRule], layers: Sequence[Layer]) -> Selection:
    """
    Decide for every rule whether it runs. `layers` come lowest first; below them lies the default, select ALL.

    Raises `SelectionError` naming every selector of select, extend-select and severity that is unknown, and when no
    rule is selected. An unknown selector of ignore gives an SL006 finding, since shared settings outlive packs.
    """
    ballot = _Ballot(Selectors(rules), (DEFAULT_LAYER, *layers))
    decisions = tuple(ballot.decide(rule) for rule in rules)
    problems = list(ballot.problems)
    if not problems and not any(decision.enabled for decision in decisions):
        problems = [_nothing_selected(decisions)]
    if problems:
        raise SelectionError(problems)
    engine = dict(sorted(ballot.engine.items()))
    return Selection(
        decisions=decisions, diagnostics=tuple(ballot.diagnostics), engine=engine, wishes=tuple(ballot.wishes)
    )


def select_from(registry: Registry, layers: Sequence[Layer]) -> Selection:
    """
    `select_rules` over everything the packs bring. A `SelectionError` also says which packs failed: the rule that
    nobody knows may be one of theirs.
    """
    try:
        return select_rules(registry.rules, layers)
    except SelectionError as error:
        raise SelectionError((*error.problems, *registry.failures())) from None


def _nothing_selected(decisions: Sequence[Decision]) -> str:
    if not decisions:
        return "no rule is loaded: expected at least the built-in pack; is shardlint installed?"
    deciders = ", ".join(sorted({decision.decided_by for decision in decisions}))
    return f"no rule is selected: all {len(decisions)} loaded rules are switched off by {deciders}"


def flag_layer(
    select: Sequence[str] = (),
    extend_select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    severity: Sequence[str] = (),
    *,
    flag: str = "--{}",
) -> Layer:
    """
    The layer of the command line. Each value may hold several selectors joined by commas.

    `flag` makes the name that errors give to an option: in Python its arguments have no dashes before them.
    `severity` values are `RULE=LEVEL` with a level of info, warning, error or off. Raises `SelectionError` naming
    every value that is empty or malformed.
    """
    problems: list[str] = []
    layer = Layer(
        select=tuple(_flag_items(flag.format("select"), select, problems)) if select else None,
        extend_select=tuple(_flag_items(flag.format("extend-select"), extend_select, problems)),
        ignore=tuple(_flag_items(flag.format("ignore"), ignore, problems)),
        severity=tuple(_flag_severities(flag.format("severity"), severity, problems)),
        select_source=SettingSource(text=flag.format("select")),
    )
    if problems:
        raise SelectionError(problems)
    return layer


def _flag_items(flag: str, values: Sequence[str], problems: list[str]) -> Iterator[Item]:
    for value in values:
        for part in value.split(","):
            if part.strip():
                yield Item(part.strip(), SettingSource(text=flag))
            else:
                problems.append(f"{flag}: expected selectors joined by commas, got {value!r}")


def _flag_severities(flag: str, values: Sequence[str], problems: list[str]) -> Iterator[SeverityItem]:
    for part in (part.strip() for value in values for part in value.split(",")):
        selector, equals, level = (text.strip() for text in part.partition("="))
        try:
            if not (selector and equals):
                raise ValueError(f"expected RULE=LEVEL, got {part!r}")
            yield SeverityItem(selector, severity_from_user(level), SettingSource(text=flag))
        except ValueError as error:
            problems.append(f"{flag}: {error}")


def severity_from_user(text: str) -> Severity | None:
    """The severity that `text` names, None for off. Raises `ValueError` naming the valid levels."""
    level = text.strip().lower()
    if level == "off":
        return None
    valid = [severity.value for severity in Severity]
    if level not in valid:
        raise ValueError(f"expected off, {', '.join(valid[:-1])} or {valid[-1]}, got {text!r}")
    return Severity(level)
