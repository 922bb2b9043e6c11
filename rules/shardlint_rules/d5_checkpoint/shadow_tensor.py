"""D507 shadow-tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import CheckpointFacts, RepeatedKey
from shardlint.names import counted
from shardlint_rules._files import READ_FILES

_SHARD = re.compile(r"(.*)-\d+-of-\d+\.safetensors")


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        checkpoint = facts.require(Section.CHECKPOINT)
        if checkpoint.overlay_declared:
            return
        pairs: dict[tuple[str, str, bool], list[RepeatedKey]] = {}
        for repeated_key in checkpoint.repeated_keys:
            if repeated_key.counts or _is_shard(repeated_key.other_file, checkpoint):
                pairs.setdefault((repeated_key.file, repeated_key.other_file, repeated_key.counts), []).append(
                    repeated_key
                )
        for (file, other, counts), items in pairs.items():
            yield self._finding(checkpoint, file, other, items, counts=counts)

    def _finding(
        self, checkpoint: CheckpointFacts, file: str, other: str, items: list[RepeatedKey], *, counts: bool
    ) -> Finding:
        weight_map = checkpoint.index.weight_map if checkpoint.index else {}
        against = [repeated.key for repeated in items if counts and weight_map.get(repeated.key) == other]
        differ = [repeated.key for repeated in items if repeated.equal is False]
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
