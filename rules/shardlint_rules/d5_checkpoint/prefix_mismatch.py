"""D510 prefix-mismatch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.wrapper_names import DATA_PARALLEL_SEGMENT, WRAPPER_SEGMENTS
from shardlint_rules._wording import spoken

_WRAPPERS = (DATA_PARALLEL_SEGMENT, *sorted(WRAPPER_SEGMENTS))
_MANY, _FEW = 0.9, 0.1


@frozen
class _Change:
    """One change of names: `kind` is remove-prefix, add-prefix or remove-wrapper, `part` what is removed or added."""

    kind: str
    part: str

    def apply(self, key: str) -> str:
        if self.kind == "add-prefix":
            return self.part + key
        if self.kind == "remove-prefix":
            return key.removeprefix(self.part)
        return ".".join(segment for segment in key.split(".") if segment != self.part)


class PrefixMismatch(Rule):
    """
    Almost no stored key has a live tensor, and almost every one would have after one change of prefix.

    ## What it does
    When at most a tenth of the live tensors have a source, tries what wrappers and saving habits put into names:
    `module.` of data parallelism, `_orig_mod.` of compilation, `_checkpoint_wrapped_module.`, a prefix that all stored
    keys share, and a prefix that all live names share. Names the one change after which nine tenths match, instead of
    every single key.

    ## Why it is unsafe
    A loader that is not strict reports thousands of missing keys once, in one long line, and starts from random values.

    ## What to do
    Remove or add the prefix when saving (save the wrapped module, not the wrapper), or declare it as a renaming in
    `checkpoint.renames`.
    """

    code = "D510"
    name = "prefix-mismatch"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.PLAN,)
    blocks = ("D501",)
    related_config = ("checkpoint.renames",)

    def check(self, facts: Facts) -> Iterator[Finding]:
        plan = facts.plan
        assert plan is not None
        if not plan.leftovers:
            return
        missing = {tensor.name for tensor in plan.tensors if tensor.status.startswith("missing")}
        unexpected = {
            leftover.renamed: leftover.key
            for leftover in plan.leftovers
            if leftover.reason not in ("derived", "other-state")
        }
        if not missing or not unexpected or len(missing) < (1 - _FEW) * len(plan.tensors):
            return
        best = max(_changes(unexpected, missing), key=lambda change: _hits(change, unexpected, missing), default=None)
        if best is None:
            return
        hits = _hits(best, unexpected, missing)
        if hits < _MANY * min(len(unexpected), len(missing)):
            return
        example, key = next((name, key) for name, key in unexpected.items() if best.apply(name) in missing)
        yield self.finding(
            subject=best.part,
            kind=SubjectKind.PATTERN,
            message=f"{len(missing)} of {len(plan.tensors)} {spoken(facts, 'live tensors')} have no source, and {hits} "
            f"would have one after {_SAYINGS[best.kind].format(part=best.part)}: {key} is for {best.apply(example)}",
            evidence={"change": best.kind, "part": best.part, "would_match": hits, "missing": len(missing)},
        )


_SAYINGS = {
    "remove-prefix": "the prefix {part} is removed from the stored keys",
    "add-prefix": "the prefix {part} is put before the stored keys",
    "remove-wrapper": "the wrapper's segment {part} is removed from the stored keys",
}


def _hits(change: _Change, unexpected: Iterable[str], missing: set[str]) -> int:
    return len({name for key in unexpected if (name := change.apply(key)) in missing})


def _changes(unexpected: Iterable[str], missing: Iterable[str]) -> Iterator[_Change]:
    segments = Counter(segment for key in unexpected for segment in set(key.split(".")))
    yield from (_Change("remove-wrapper", wrapper) for wrapper in _WRAPPERS if wrapper in segments)
    yield from (_Change("remove-prefix", prefix) for prefix in _prefixes(unexpected))
    yield from (_Change("add-prefix", prefix) for prefix in _prefixes(missing))


def _prefixes(names: Iterable[str]) -> Iterator[str]:
    """Yield the dotted prefixes, of up to four segments, that most of the names share."""
    names = list(names)
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        counts.update(".".join(parts[:count]) + "." for count in range(1, min(len(parts), 5)))
    yield from (prefix for prefix, count in counts.items() if count >= _MANY / 2 * len(names))
