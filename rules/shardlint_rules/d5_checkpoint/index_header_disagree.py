"""D506 index-header-disagree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from operator import attrgetter, eq
from typing import NamedTuple

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.keys import KeyResolver, identity_reason
from shardlint.facts import CheckpointFacts
from shardlint_rules._files import READ_FILES
from shardlint_rules._sides import side_of


class IndexHeaderDisagree(Rule):
    """
    The index and the headers of the files disagree about where a key is stored.

    ## What it does
    Reports keys that the index maps to a file whose header does not hold them (and the file that does), and keys in the
    header of a named file that the index does not know. It says whether the live model wants the key. Files whose
    header could not be read are left to the rules about files.

    ## Why it is unsafe
    Loaders differ: some read every key of every file, some only what the index says, some fail. The same folder
    then gives different models.

    ## What to do
    Write the index again from the headers, or save the checkpoint again.
    """

    code = "D506"
    name = "index-header-disagree"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.CHECKPOINT,)
    tags = (READ_FILES,)

    noun = "key"

    def subjects(self, facts: Facts) -> Iterator[_Place]:
        """Every key of the index, then every key of its files that it does not name."""
        checkpoint = facts.require(Section.CHECKPOINT)
        if checkpoint.index is None:
            return
        weight_map = checkpoint.index.weight_map
        headers = None if _agrees(checkpoint, weight_map) else _Headers(facts, checkpoint)
        for key, file in weight_map.items():
            yield _Place(key, str(file), headers)
        if headers is not None:
            for entry in checkpoint.entries:
                if entry.key not in weight_map:
                    yield _Place(entry.key, entry.file, headers, named=False)

    def judge(self, place: _Place, facts: Facts) -> Iterable[Finding]:
        return () if place.headers is None else self._judged(place.key, place.file, place.headers, named=place.named)

    def _judged(self, key: str, file: str, headers: _Headers, *, named: bool) -> Iterator[Finding]:
        if not named:
            yield self._unknown(key, file, headers.wants(key))
        elif file not in headers.opened:
            raise NotEvaluated(f"no header could be read of {file}")
        elif file not in headers.holders.get(key, ()):
            yield self._absent(key, file, headers.holders.get(key, []), headers.wants(key))

    def _absent(self, key: str, file: str, holders: list[str], wanted: str) -> Finding:
        where = f"found it in {', '.join(holders)}" if holders else "found it in no file that was read"
        return self.finding(
            subject=key,
            kind=SubjectKind.KEY,
            message=f"the index maps {key} to {file}, whose header does not hold it; {where}; {wanted}",
            evidence={"index_file": file, "found_in": holders, "live_model": wanted},
        )

    def _unknown(self, key: str, file: str, wanted: str) -> Finding:
        return self.finding(
            subject=key,
            kind=SubjectKind.KEY,
            message=f"{file} holds {key}, which the index does not name; {wanted}",
            evidence={"found_in": [file], "live_model": wanted},
            key=file,
        )


def _agrees(checkpoint: CheckpointFacts, weight_map: Mapping[str, str]) -> bool:
    """Whether every key of the index is where it says, and no other key is there: by far the most frequent case."""
    entries = checkpoint.entries
    mapped = map(dict(weight_map.items()).get, map(attrgetter("key"), entries))
    return len(weight_map) == len(entries) and all(map(eq, mapped, map(attrgetter("file"), entries)))


@frozen(slots=False)
class _Headers:
    """What the headers hold, where they disagree with the index."""

    facts: Facts
    checkpoint: CheckpointFacts

    @cached_property
    def holders(self) -> dict[str, list[str]]:
        """The files that hold each key."""
        found: dict[str, list[str]] = {}
        for entry in (*self.checkpoint.entries, *self.checkpoint.extra_entries):
            found.setdefault(entry.key, []).append(entry.file)
        return found

    @cached_property
    def opened(self) -> set[str]:
        """The files whose header was read without a problem."""
        broken = {problem.file for problem in self.checkpoint.problems}
        return {file.name for file in self.checkpoint.files if file.opened and file.name not in broken}

    @cached_property
    def wants(self) -> _Wants:
        return _Wants(self.facts)


class _Place(NamedTuple):
    """A key and the file where it is said to be, or is without being `named`; no `headers` where all agree."""

    key: str
    file: str
    headers: _Headers | None
    named: bool = True


class _Wants:
    """Says in words whether the live model wants a key."""

    def __init__(self, facts: Facts) -> None:
        self._model = side_of(facts).model
        self._planned = facts.plan.names_by_key() if facts.plan else {}
        self._leftover = {leftover.key for leftover in facts.plan.leftovers} if facts.plan else set()
        self._unknown = identity_reason(facts)
        self._resolver = KeyResolver(facts.model) if facts.model and not self._unknown else None

    def __call__(self, key: str) -> str:
        if key in self._planned:
            return f"{self._model} wants it as {self._planned[key][0]}"
        if key in self._leftover:
            return f"{self._model} does not want it"
        if self._resolver is None:
            return f"whether {self._model} wants it is unknown"
        name = self._resolver.live_name(key)
        return f"{self._model} wants it as {name}" if name else f"{self._model} does not want it"
