"""Parameters that FSDP1 has flattened."""

from __future__ import annotations

import math

from shardlint import Facts
from shardlint.facts import LayoutFacts

FLATTENED = "FSDP1 keeps a run of elements of each parameter on each rank, which is not compared with whole tensors"


def flattened(facts: Facts) -> bool:
    """Whether FSDP1 cuts parameters of the model; one that shards nothing (NO_SHARD) leaves them whole."""
    sharding = facts.sharding
    if sharding is None:
        return False
    units = {index for index, unit in enumerate(sharding.units) if unit.kind == "fsdp1"}
    records = (record for record in sharding.parameters if record.unit in units)
    return any(not _whole(sharding.layout_of(record)) for record in records)


def _whole(layout: LayoutFacts) -> bool:
    return layout.flat == (0, math.prod(layout.global_shape))
