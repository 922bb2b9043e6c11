"""What a selector names: `ALL`, a phase, a tag, a pack, a code prefix, a code or a name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from attrs import frozen

from ..names import closest
from ..plugins.registry import RegisteredRule
from ..rule import Phase

_PREFIX = re.compile(r"[A-Z]{1,8}[0-9]{0,3}\Z")
_PHASE_LIKE = re.compile(r"[A-Za-z][0-9]\Z")
_ALL, _TAG, _PACK, _CODE = 0, 1, 2, 100
_PREFIX_BASE = 10
_PHASES = tuple(phase.value for phase in Phase if phase is not Phase.ENGINE)


@frozen
class Match:
    """The rules that a selector covers, how specific it is, and whether it names one rule."""

    codes: frozenset[str]
    specificity: int

    @property
    def exact(self) -> bool:
        """Whether the selector is the code or name of one rule."""
        return self.specificity == _CODE


class UnknownSelectorError(Exception):
    """A selector that means nothing, or two things."""


class Selectors:
    """Everything that a selector may name among `rules`."""

    def __init__(self, rules: Sequence[RegisteredRule]) -> None:
        self.rules = rules
        self.codes = frozenset(rule.rule_class.code for rule in rules)
        self.names = {rule.rule_class.name: rule.rule_class.code for rule in rules}
        self.tags = self._group((tag, rule) for rule in rules for tag in rule.rule_class.tags)
        self.packs = self._group((rule.pack, rule) for rule in rules)

    @staticmethod
    def _group(pairs: Iterable[tuple[str, RegisteredRule]]) -> dict[str, frozenset[str]]:
        groups: dict[str, set[str]] = {}
        for key, rule in pairs:
            groups.setdefault(key, set()).add(rule.rule_class.code)
        return {key: frozenset(codes) for key, codes in groups.items()}

    def resolve(self, selector: str) -> Match:
        """What `selector` covers. Raises `UnknownSelectorError` with the end of a sentence."""
        if selector == "ALL":
            return Match(self.codes, _ALL)
        code = self.names.get(selector, selector)
        if code in self.codes:
            return Match(frozenset({code}), _CODE)
        kind, colon, value = selector.partition(":")
        if colon:
            return self._qualified(kind, value, selector)
        if selector in _PHASES:
            return self._phase(selector)
        if _PREFIX.match(selector):
            covered = frozenset(code for code in self.codes if code.startswith(selector))
            if covered:
                return Match(covered, _PREFIX_BASE + len(selector))
        return self._bare(selector)

    def _phase(self, value: str) -> Match:
        covered = {rule.rule_class.code for rule in self.rules if rule.rule_class.phase.value == value}
        return Match(frozenset(covered), _PREFIX_BASE + len(value))

    def _qualified(self, kind: str, value: str, selector: str) -> Match:
        if kind == "phase" and value in _PHASES:
            return self._phase(value)
        if kind == "tag" and value in self.tags:
            return Match(self.tags[value], _TAG)
        if kind == "pack" and value in self.packs:
            return Match(self.packs[value], _PACK)
        known = {"phase": set(_PHASES), "tag": set(self.tags), "pack": set(self.packs)}.get(kind)
        if known is None:
            raise UnknownSelectorError(f"{selector!r} begins with none of phase:, tag: and pack:")
        values = ", ".join(sorted(known)) or "none"
        raise UnknownSelectorError(f"{value!r} is no {kind} of a loaded pack; there are: {values}")

    def _bare(self, selector: str) -> Match:
        if selector in self.tags and selector in self.packs:
            raise UnknownSelectorError(f"{selector!r} is a tag and a pack: write tag:{selector} or pack:{selector}")
        if selector in self.tags:
            return Match(self.tags[selector], _TAG)
        if selector in self.packs:
            return Match(self.packs[selector], _PACK)
        raise UnknownSelectorError(
            f"{selector!r} is not a rule, prefix, phase, tag or pack that is loaded{self.hint(selector)}"
        )

    def hint(self, selector: str) -> str:
        """` (did you mean ...?)` over everything there is, for `D9` the phases, or nothing."""
        if _PHASE_LIKE.match(selector):
            return f" (the phases are {', '.join(_PHASES)})"
        known = [*sorted(self.codes), *sorted(self.names), *_PHASES, *sorted(self.tags), *sorted(self.packs), "ALL"]
        folded = {known_selector.lower(): known_selector for known_selector in reversed(known)}
        near = [folded[known_selector] for known_selector in closest(selector.lower(), folded, 1)]
        return f" (did you mean {near[0]!r}?)" if near else ""
