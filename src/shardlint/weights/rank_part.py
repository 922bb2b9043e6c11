"""What one rank compared, as plain data that can be sent."""

from __future__ import annotations

from attrs import define, field, frozen

from .compare.counts import Tally
from .result import WrongLayout
from .symbolic.volume import Lattice


@frozen(kw_only=True)
class LivePart:
    """
    One live tensor on one rank: `expected` local elements, `covered` by boxes, and what its padding holds.

    `padding` is None when the storage holds nothing else. `names` are all its names; `reason` says why it was not
    compared. `followed` tells that it equals another rank's replica, which was compared.
    """

    name: str
    names: tuple[str, ...]
    dtype: str
    expected: int
    covered: int = 0
    padding: Tally | None = None
    reason: str = ""
    followed: bool = False


@frozen(kw_only=True)
class CountPart:
    """The counts of one live tensor against one stored tensor."""

    live: str
    key: str
    tally: Tally


@define(kw_only=True)
class RankPart:
    """
    Everything that one rank found. `read` are the lattices of stored elements that it compared, by key.

    `unwritten` says why its report could not be written. `unplanned` tells that `error` is the reason why no load plan
    can be made: then nothing is wrong, nor right.
    """

    rank: int = 0
    live: list[LivePart] = field(factory=list)
    counts: list[CountPart] = field(factory=list)
    read: dict[str, list[Lattice]] = field(factory=dict)
    unknown: list[str] = field(factory=list)
    layouts: list[WrongLayout] = field(factory=list)
    bytes: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    sampled: bool = False
    error: str = ""
    unplanned: bool = False
    sent: int = 0
    unwritten: str = ""
