"""The renamings of stored keys after which tensors without a source would have one, found from a load plan."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from attrs import frozen

from ..facts import PlanFacts, Renaming

Shape = tuple[int, ...]
_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
_MOST_PATTERNS = 200  # of either side: pairs of them are compared
_MOST_RENAMINGS = 16
_SAME_INITIAL = 0.5
_CLEARER = 0.05  # by so much one name has to look more alike than the next, where shapes do not decide


@frozen
class _Rule:
    """A regular expression with its replacement, and what it is made of: the segments that differ."""

    source: str
    target: str
    old: str
    new: str

    def applied(self) -> Callable[[str], str]:
        """The renaming as a function of a key."""
        expression = re.compile(self.source)
        return lambda key: expression.sub(self.target, key)

    @property
    def likeness(self) -> float:
        """How much alike the two names look; the same initial (`query`, `q_proj`) counts as well."""
        initial = _SAME_INITIAL if self.old[:1] == self.new[:1] else 0
        return initial + difflib.SequenceMatcher(None, self.old, self.new).ratio()


@frozen(slots=False)
class _Open:
    """Stored keys without a place, and tensors without a source, with their shapes."""

    keys: Mapping[str, Shape]
    names: Mapping[str, Shape]

    @cached_property
    def of_shape(self) -> dict[tuple[Shape, str], dict[str, list[str]]]:
        """The keys by shape and last segment, and then by pattern."""
        found: dict[tuple[Shape, str], dict[str, list[str]]] = {}
        for key, shape in self.keys.items():
            patterns = found.setdefault((shape, key.rpartition(".")[2]), {})
            patterns.setdefault(_NUMBER.sub("#", key), []).append(key)
        return found

    def cured(self, rule: _Rule) -> dict[str, str]:
        """The tensors that the rule would give a source, with their keys; a rule that merges two keys gives none."""
        rename, found = rule.applied(), dict[str, str]()
        for key, shape in self.keys.items():
            name = rename(key)
            if name == key or self.names.get(name) != shape:
                continue
            if name in found:
                return {}
            found[name] = key
        return found

    def without(self, cured: Mapping[str, str]) -> _Open:
        """What stays open."""
        taken = set(cured.values())
        return _Open(
            {key: shape for key, shape in self.keys.items() if key not in taken},
            {name: shape for name, shape in self.names.items() if name not in cured},
        )


def infer_renamings(plan: PlanFacts) -> tuple[Renaming, ...]:
    """
    The renamings, as regular expressions, that would give a source of the same shape to two or more tensors each.

    Where several names fit by their shapes, the ones that look clearly most alike are taken, and none where no name
    does. The result is a guess: plan with it before it is told.
    """
    left = _Open(
        {item.key: item.shape for item in plan.leftovers if item.reason == "unexpected" and item.renamed == item.key},
        {tensor.name: tensor.shape for tensor in plan.tensors if tensor.status == "missing"},
    )
    found: list[Renaming] = []
    while left.keys and left.names and len(found) < _MOST_RENAMINGS:
        best = _best(left)
        if best is None:
            break
        rule, cured = best
        found.append(Renaming(source=rule.source, target=rule.target, keys=tuple(cured.values()), names=tuple(cured)))
        left = left.without(cured)
    return tuple(found)


def renames_entry(cure: Renaming) -> str:
    """The renaming as an item of `checkpoint.renames`, in YAML."""
    return f"{{from: {_quoted(cure.source)}, to: {_quoted(cure.target)}}}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _best(left: _Open) -> tuple[_Rule, dict[str, str]] | None:
    """The rule that cures most; of those that cure the same keys or tensors, the one whose names look most alike."""
    scored = [(rule, cured) for rule in dict.fromkeys(_rules(left)) if len(cured := left.cured(rule)) > 1]
    scored.sort(key=lambda pair: (-len(pair[1]), -pair[0].likeness, len(pair[0].source)))
    for rule, cured in scored:
        rivals = [
            other
            for other, others in scored
            if len(others) >= len(cured)
            and (other.old, other.new) != (rule.old, rule.new)
            and _contradict(cured, others)
        ]
        if all(rule.likeness > rival.likeness + _CLEARER for rival in rivals):
            return rule, cured
    return None


def _contradict(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Whether two cures give one tensor different keys, or one key to different tensors."""
    back = {key: name for name, key in second.items()}
    return any(second.get(name, key) != key or back.get(key, name) != name for name, key in first.items())


def _rules(left: _Open) -> Iterator[_Rule]:
    examples: dict[str, str] = {}
    for name in left.names:
        examples.setdefault(_NUMBER.sub("#", name), name)
    for name in list(examples.values())[:_MOST_PATTERNS]:
        patterns = left.of_shape.get((left.names[name], name.rpartition(".")[2]), {})
        for keys in list(patterns.values())[:_MOST_PATTERNS]:
            yield from _rules_of(_in_the_same_place(keys, name), name)


def _in_the_same_place(keys: Iterable[str], name: str) -> str:
    """Of keys with one pattern, the one whose numbers agree longest with those of `name`."""
    numbers = _NUMBER.findall(name)

    def agreeing(key: str) -> int:
        pairs = zip(_NUMBER.findall(key), numbers, strict=False)
        return next((at for at, (one, other) in enumerate(pairs) if one != other), len(numbers))

    return max(keys, key=agreeing)


def _rules_of(key: str, name: str) -> Iterator[_Rule]:
    """The rules that make `name` of `key`: with what stands before the difference, and wherever it stands."""
    one, other = key.split("."), name.split(".")
    begin = _alike(one, other)
    end = min(_alike(one[::-1], other[::-1]), min(len(one), len(other)) - begin)
    old, new = one[begin : len(one) - end], other[begin : len(other) - end]
    if not end or not (old or new):
        return
    gone, put = "".join(rf"{re.escape(part)}\." for part in old), "".join(f"{part}." for part in new)
    said = ".".join(old), ".".join(new)
    digit = put[:1].isdigit()  # it would become a part of the number of the group
    if not begin:
        yield _Rule(f"^{gone}" if put else f"^{gone}(.*)", put or r"\1", *said)
        return
    if old and not digit:
        yield _Rule(rf"(^|\.){gone}", rf"\1{put}", *said)
    kept = begin - 1 if digit and not one[begin - 1].isdigit() else begin
    before = "".join(rf"{_any_number(part)}\." for part in one[:kept])
    between = "".join(f"{part}." for part in one[kept:begin])
    group = r"\1" if not digit or between else r"\g<1>"
    yield _Rule(f"^({before}){re.escape(between)}{gone}", f"{group}{between}{put}", *said)


def _any_number(part: str) -> str:
    return r"\d+" if part.isdigit() else re.escape(part)


def _alike(one: list[str], other: list[str]) -> int:
    """How many segments from the beginning are the same."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(one), len(other)))
