"""D309 flag-contradicts-layout."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.analysis.model_config import config_number
from shardlint.facts import OwnershipFacts, ShardingFacts, known

from ._layouts import live, once, refuse_strange

_FLAG = "tensor_model_parallel"


@frozen
class _Flagged:
    """A flagged parameter, and the size of the vocabulary where it has it in full beside others that are cut."""

    fqn: str
    record: OwnershipFacts
    full: int | None


class FlagContradictsLayout(Rule):
    """
    A parameter is flagged as tensor-parallel while it is replicated, or the reverse.

    ## What it does
    Compares the flag `tensor_model_parallel` that libraries set on parameters with the layout: a flagged
    distributed tensor must have a shard, one that is flagged `False` must have none. A plain tensor that is flagged
    while its `partition_dim` has the full size of the vocabulary is reported when other flagged tensors are cut.

    ## Why it is unsafe
    The flag decides how a gradient norm is counted, whether a duplicate is skipped when saving, and which random state
    initialises the tensor. A replica that counts as a shard enters the norm once for every rank; a shard that
    counts as a replica is left out on all ranks but the first.

    ## What to do
    Set the flag where the tensor is cut, and remove it when a tensor is gathered or replaced by a full one.
    """

    code = "D309"
    name = "flag-contradicts-layout"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)

    noun = "flagged parameter"

    def subjects(self, facts: Facts) -> Iterator[_Flagged]:
        sharding = facts.require(Section.SHARDING)
        flagged = [record for record in once(live(sharding.parameters)) if _FLAG in record.marks]
        vocabulary = config_number(facts.model.config if facts.model else None, "vocab_size")
        full = {record.fqn for record in flagged if _is_full(sharding, record, vocabulary)}
        cut = any(record.marks[_FLAG] and record.fqn not in full for record in flagged)
        for record in flagged:
            yield _Flagged(record.fqn, record, vocabulary if record.fqn in full and cut else None)

    def judge(self, flagged: _Flagged, facts: Facts) -> Iterator[Finding]:
        record = flagged.record
        says, layout = bool(record.marks[_FLAG]), facts.require(Section.SHARDING).layout_of(record)
        shards = any(placement.is_shard for placement in layout.source_placements)
        if not shards:
            refuse_strange(layout, source=True)
        if known(layout.source_mesh) is not None and says != shards:
            found = f"placements {', '.join(placement.text for placement in layout.source_placements)}"
        elif says and flagged.full is not None:
            found = f"the full size {flagged.full} in dim {record.marks.get('partition_dim', 0)}"
        else:
            return
        yield self.finding(
            subject=record.fqn,
            owner=record.owner,
            message=f"flagged {_FLAG}={says}, expected a {'cut' if says else 'replicated'} tensor, found {found}",
            evidence={"marks": record.marks, "shape": layout.global_shape},
        )


def _is_full(sharding: ShardingFacts, record: OwnershipFacts, vocabulary: int | None) -> bool:
    layout, dim = sharding.layout_of(record), record.marks.get("partition_dim", 0)
    inside = isinstance(dim, int) and 0 <= dim < len(layout.global_shape) == 2
    return known(layout.source_mesh) is None and inside and layout.global_shape[dim] == vocabulary
