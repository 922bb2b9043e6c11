"""D506 index-header-disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter, eq

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
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

    def check(self, facts: Facts) -> Iterator[Finding]:
        checkpoint = facts.require(Section.CHECKPOINT)
        if checkpoint.index is None or _agrees(checkpoint, checkpoint.index.weight_map):
            return
        holders: dict[str, list[str]] = {}
        for entry in (*checkpoint.entries, *checkpoint.extra_entries):
            holders.setdefault(entry.key, []).append(entry.file)
        opened = _opened(checkpoint)
        wants = _Wants(facts)
        for key, file in checkpoint.index.weight_map.items():
            if file in opened and file not in holders.get(key, ()):
                yield self._absent(key, str(file), holders.get(key, []), wants(key))
        for entry in checkpoint.entries:
            if entry.key not in checkpoint.index.weight_map:
                yield self._unknown(entry.key, entry.file, wants(entry.key))

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


def _opened(checkpoint: CheckpointFacts) -> set[str]:
    """The files whose header was read without a problem."""
    broken = {problem.file for problem in checkpoint.problems}
    return {file.name for file in checkpoint.files if file.opened and file.name not in broken}


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
