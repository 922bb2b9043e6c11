"""The `ranks` section: what the ranks of one job told each other. The same on every rank."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class RankDifference:
    """
    Something that ranks which work together do not agree about.

    `ranks` hold `value` where `reference_rank` holds `reference`. `fqn` says of what, `kind` what that is: parameter,
    buffer, cache (a non-persistent buffer), module, unit, model, config, optimizer, group, held, contract, data,
    checkpoint, environment, runtime or asked. `field` says which of its facts (`present`, `global_shape`, `dtype`,
    `owner`, `mixed_precision`, ...). Values are texts.
    """

    fqn: str
    kind: str = "parameter"
    field: str
    ranks: tuple[int, ...]
    value: str
    reference_rank: int
    reference: str


@frozen(kw_only=True)
class RankNames:
    """Names that concern some ranks."""

    ranks: tuple[int, ...]
    names: tuple[str, ...] = ()


@frozen(kw_only=True)
class RanksFacts:
    """
    The comparison of all ranks.

    `compared` lists the sets of ranks that share a mesh or a reduction, and were therefore compared; ranks of
    different pipeline stages share none. `left_out` counts differences beyond the first ones, which are listed.
    `runtime` are differences of traced steps: a unit (`entered`) or a gradient (`gradient`), `runtime_traced` the
    ranks that had a trace.

    `unwanted` are the stored keys of each rank that no other pipeline stage wants either, `unheld` the parameters that
    no rank's optimizer holds where each holds a part. Ranks without an entry have nothing to join: their own facts
    count. `twins` are compared sets of ranks that are equal in everything, first values included, and share nothing.
    `asked` are differences in what the ranks were asked to do.
    """

    world_size: int
    compared: tuple[tuple[int, ...], ...] = ()
    differences: tuple[RankDifference, ...] = ()
    left_out: int = 0
    runtime: tuple[RankDifference, ...] = ()
    runtime_traced: tuple[int, ...] = ()
    asked: tuple[RankDifference, ...] = ()
    twins: tuple[tuple[tuple[int, ...], ...], ...] = ()
    unwanted: tuple[RankNames, ...] = ()
    unheld: tuple[RankNames, ...] = ()

    def unwanted_on(self, rank: int) -> frozenset[str] | None:
        """The stored keys that nobody wants, as far as `rank` is concerned; None when nothing was joined."""
        return _names_of(self.unwanted, rank)

    def unheld_on(self, rank: int) -> frozenset[str] | None:
        """The parameters that nobody holds, as far as `rank` is concerned; None when nothing was joined."""
        return _names_of(self.unheld, rank)


def _names_of(entries: tuple[RankNames, ...], rank: int) -> frozenset[str] | None:
    return next((frozenset(entry.names) for entry in entries if rank in entry.ranks), None)
