"""The one change of prefix after which the keys of a checkpoint are those that a load plan looks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import frozen

from ..facts import LeftoverKey, PlanFacts
from .wrapper_names import DATA_PARALLEL_SEGMENT, WRAPPER_SEGMENTS

_WRAPPERS = (DATA_PARALLEL_SEGMENT, *sorted(WRAPPER_SEGMENTS))
_MANY, _FEW = 0.9, 0.1
_EXPECTED_LEFTOVERS = ("derived", "other-state")


@frozen
class NameChange:
    """One change of names: `kind` is remove-prefix, add-prefix or remove-wrapper, `part` what is removed or added."""

    kind: str
    part: str

    def apply(self, key: str) -> str:
        """Return the key after the change."""
        if self.kind == "add-prefix":
            return self.part + key
        if self.kind == "remove-prefix":
            return key.removeprefix(self.part)
        return ".".join(segment for segment in key.split(".") if segment != self.part)


@frozen(kw_only=True)
class PrefixChange:
    """
    A change that gives a source to nearly all tensors without one.

    `hits` tensors of the `missing` would have one; the stored key `key` would be for the tensor `name`.
    """

    change: NameChange
    hits: int
    missing: int
    leftover: LeftoverKey
    name: str

    @property
    def key(self) -> str:
        """The stored key that would be for `name`."""
        return self.leftover.key


def prefix_change(plan: PlanFacts) -> PrefixChange | None:
    """The change of prefix that explains why next to no tensor of the plan has a source; None when none does."""
    missing = {tensor.name for tensor in plan.tensors if tensor.status.startswith("missing")}
    unexpected = {
        leftover.renamed: leftover for leftover in plan.leftovers if leftover.reason not in _EXPECTED_LEFTOVERS
    }
    if not missing or not unexpected or len(missing) < (1 - _FEW) * len(plan.tensors):
        return None
    best = max(_changes(unexpected, missing), key=lambda change: _hits(change, unexpected, missing), default=None)
    if best is None:
        return None
    hits = _hits(best, unexpected, missing)
    if hits < _MANY * min(len(unexpected), len(missing)):
        return None
    example = next(name for name in unexpected if best.apply(name) in missing)
    return PrefixChange(
        change=best, hits=hits, missing=len(missing), leftover=unexpected[example], name=best.apply(example)
    )


def _hits(change: NameChange, unexpected: Iterable[str], missing: set[str]) -> int:
    return len({name for key in unexpected if (name := change.apply(key)) in missing})


def _changes(unexpected: Iterable[str], missing: Iterable[str]) -> Iterator[NameChange]:
    segments = Counter(segment for key in unexpected for segment in set(key.split(".")))
    yield from (NameChange("remove-wrapper", wrapper) for wrapper in _WRAPPERS if wrapper in segments)
    yield from (NameChange("remove-prefix", prefix) for prefix in _prefixes(unexpected))
    yield from (NameChange("add-prefix", prefix) for prefix in _prefixes(missing))


def _prefixes(names: Iterable[str]) -> Iterator[str]:
    """Yield the dotted prefixes, of up to four segments, that most of the names share."""
    names = list(names)
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        counts.update(".".join(parts[:count]) + "." for count in range(1, min(len(parts), 5)))
    yield from (prefix for prefix, count in counts.items() if count >= _MANY / 2 * len(names))
