"""D516 total-size-differs."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import IndexFacts, known
from shardlint_rules._files import WHOLE_CHECKPOINT


class TotalSizeDiffers(Rule):
    """
    The index gives another total size than its files hold.

    ## What it does
    Adds up the bytes of all tensors of the files that the index names and compares the sum with the `total_size` of its
    metadata.

    ## Why it is unsafe
    Harmless by itself, but the index was not written for these files: a shard was replaced, or the index is stale.

    ## What to do
    Write the index again from the files, after you made sure that they are the right ones.
    """

    code = "D516"
    name = "total-size-differs"
    phase = Phase.D5
    severity = Severity.INFO
    needs = (Section.CHECKPOINT,)
    tags = (WHOLE_CHECKPOINT,)

    noun = "index"

    def subjects(self, facts: Facts) -> Iterator[IndexFacts]:
        index = facts.require(Section.CHECKPOINT).index
        if index is not None and known(index.total_size) is not None:
            yield index

    def judge(self, index: IndexFacts, facts: Facts) -> Iterator[Finding]:
        checkpoint = facts.require(Section.CHECKPOINT)
        read = {file.name for file in checkpoint.files if file.opened}
        if unread := sorted(set(index.weight_map.values()) - read):
            raise NotEvaluated(f"no header could be read of {', '.join(map(str, unread[:3]))}")
        stored = sum(entry.end - entry.begin for entry in checkpoint.entries)
        if stored != index.total_size:
            yield self.finding(
                subject=index.name,
                kind=SubjectKind.FILE,
                message=f"{index.name} says {index.total_size} bytes in all, the tensors of its files have {stored}",
                evidence={"index": index.total_size, "files": stored},
            )
