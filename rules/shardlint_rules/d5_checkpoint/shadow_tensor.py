"""D507 shadow-tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import CheckpointFacts, RepeatedKey, known
from shardlint.names import counted
from shardlint_rules._files import READ_FILES

_SHARD = re.compile(r"(.*)-\d+-of-\d+\.safetensors")


@frozen
class _Taken:
    """A file that loaders read, whether its header was, and the tensors that (other file, is it read?) holds too."""

    name: str
    opened: bool
    twice: Mapping[tuple[str, bool], list[RepeatedKey]]


class ShadowTensor(Rule):
    """
    A tensor is stored in a second file, where it hides the one that was meant, or is hidden by it.

    ## What it does
    Looks for keys that stand in two files: in two files that loaders read (the later file wins, whatever the index
    says), and in a file beside them that is named like a shard. Every pair of files is one finding. Where the bytes are
    the same in both, it is information only. Variants (`model.fp16.safetensors`) are not shards of the same model.

    ## Why it is unsafe
    Today's loaders read every key of every file that the index names, in the order of the file names, and let the last
    one win silently. A leftover of an earlier save silently replaces trained weights.

    ## What to do
    Delete the file that does not belong, or save the checkpoint again into an empty folder. If your
    loader takes every key from the file that the index names, declare it with `checkpoint.allow-overlay`.
    """

    code = "D507"
    name = "shadow-tensor"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.CHECKPOINT,)
    tags = (READ_FILES,)
    related_config = ("checkpoint.allow-overlay",)

    noun = "file"

    def subjects(self, facts: Facts) -> Iterator[_Taken]:
        """Every file that loaders read, with the tensors of it that stand in other files as well."""
        checkpoint = facts.require(Section.CHECKPOINT)
        if checkpoint.overlay_declared:
            return
        twice: dict[str, dict[tuple[str, bool], list[RepeatedKey]]] = {}
        for repeated in checkpoint.repeated_keys:
            if repeated.counts or _is_shard(repeated.other_file, checkpoint):
                others = twice.setdefault(repeated.file, {})
                others.setdefault((repeated.other_file, repeated.counts), []).append(repeated)
        opened = {file.name: file.opened for file in checkpoint.files if file.counts}
        for name in opened | dict.fromkeys(twice):
            yield _Taken(name, opened.get(name, True), twice.get(name, {}))

    def judge(self, taken: _Taken, facts: Facts) -> Iterator[Finding]:
        for (other, counts), items in taken.twice.items():
            yield self._finding(facts.require(Section.CHECKPOINT), (taken.name, other), items, counts=counts)
        if not taken.opened:
            raise NotEvaluated("its header could not be read")

    def _finding(
        self, checkpoint: CheckpointFacts, files: tuple[str, str], items: list[RepeatedKey], *, counts: bool
    ) -> Finding:
        file, other = files
        weight_map = checkpoint.index.weight_map if checkpoint.index else {}
        against = [repeated.key for repeated in items if counts and weight_map.get(repeated.key) == other]
        differ = [repeated.key for repeated in items if known(repeated.equal) is False]
        unknown = sum(repeated.equal is None for repeated in items)
        shown = ", ".join([*differ, *(repeated.key for repeated in items if repeated.equal is not False)][:3])
        said = [f"{other} holds {counted(len(items), 'tensor')} that loaders take from {file} ({shown})"]
        said += [f"the index maps {len(against)} of them to {other}"] if against else []
        said += [f"the bytes of {len(differ)} differ"] if differ else []
        said += [f"the bytes of {unknown} were not compared"] if unknown else []
        same = not differ and not unknown
        return self.finding(
            subject=other,
            kind=SubjectKind.FILE,
            severity=Severity.INFO if same else Severity.ERROR,
            message="; ".join([*said, *(["all bytes are the same"] if same else [])]),
            evidence={
                "taken_from": file,
                "keys": [repeated.key for repeated in items][:50],
                "differing": differ[:50],
                "against_the_index": against[:50],
                "both_files_are_read": counts,
            },
            key=file,
        )


def _is_shard(name: str, checkpoint: CheckpointFacts) -> bool:
    """Whether a file that no loader reads is named like a part of the same checkpoint."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return False
    stems = {_SHARD.sub(r"\1", file.name).removesuffix(".safetensors") for file in checkpoint.files if file.counts}
    return match[1] in stems
