"""The `ranks` section: what the ranks of one job told each other. The same on every rank."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class RankDifference:
    """
    Something that ranks which work together do not agree about.

    `ranks` hold `value` where `reference_rank` holds `reference`; `field` says of what (`present`, `global_shape`,
    `dtype`, `owner`, `domain`, `mesh`, `placements`, `requires_grad`). Values are texts.
    """

    fqn: str
    field: str
    ranks: tuple[int, ...]
    value: str
    reference_rank: int
    reference: str


@frozen(kw_only=True)
class RanksFacts:
    """
    The comparison of all ranks.

    `compared` lists the sets of ranks that share a mesh or a reduction, and were therefore compared; ranks of
    different pipeline stages share none. `left_out` counts differences beyond the first ones, which are listed.
    `runtime` are differences of traced steps: a unit (`entered`) or a gradient (`gradient`), `runtime_traced` the
    ranks that had a trace.
    """

    world_size: int
    compared: tuple[tuple[int, ...], ...] = ()
    differences: tuple[RankDifference, ...] = ()
    left_out: int = 0
    runtime: tuple[RankDifference, ...] = ()
    runtime_traced: tuple[int, ...] = ()
