"""D309 flag-contradicts-layout."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.analysis.model_config import config_number
from shardlint.facts import OwnershipFacts, ShardingFacts

from ._layouts import live, once

_FLAG = "tensor_model_parallel"


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        sharding = facts.require(Section.SHARDING)
        flagged = [record for record in once(live(sharding.parameters)) if _FLAG in record.marks]
        vocabulary = config_number(facts.model.config if facts.model else None, "vocab_size")
        full = {record.fqn for record in flagged if _is_full(sharding, record, vocabulary)}
        cut = [record for record in flagged if record.marks[_FLAG] and record.fqn not in full]
        for record in flagged:
            says, layout = bool(record.marks[_FLAG]), sharding.layout_of(record)
            shards = [
                source_placement.text for source_placement in layout.source_placements if source_placement.is_shard
            ]
            if layout.source_mesh is not None and says != bool(shards):
                found = (
                    f"placements {', '.join(source_placement.text for source_placement in layout.source_placements)}"
                )
            elif says and record.fqn in full and cut:
                found = f"the full size {vocabulary} in dim {record.marks.get('partition_dim', 0)}"
            else:
                continue
            yield self.finding(
                subject=record.fqn,
                owner=record.owner,
                message=f"flagged {_FLAG}={says}, expected a {'cut' if says else 'replicated'} tensor, found {found}",
                evidence={"marks": record.marks, "shape": layout.global_shape},
            )


def _is_full(sharding: ShardingFacts, record: OwnershipFacts, vocabulary: int | None) -> bool:
    layout, dim = sharding.layout_of(record), record.marks.get("partition_dim", 0)
    inside = isinstance(dim, int) and 0 <= dim < len(layout.global_shape) == 2
    return layout.source_mesh is None and inside and layout.global_shape[dim] == vocabulary
