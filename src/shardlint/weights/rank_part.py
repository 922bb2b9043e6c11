"""What one rank compared, as plain data that can be sent."""

from __future__ import annotations

import traceback
from pathlib import Path

from attrs import define, field, frozen

from ..ranks.exchange import RankError
from ..target import TargetError
from .compare.counts import Tally
from .compare.live_tensor import Unreadable
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


@frozen(kw_only=True)
class LookPart:
    """What a live tensor that differs looks like, as in `compare.likeness.Likeness`."""

    name: str
    text: str
    median_abs: float | None = None
    bits: int = 0


@define(kw_only=True)
class RankPart:
    """
    Everything that one rank found. `read` are the lattices of stored elements that it compared, by key.

    `unwritten` says why its report could not be written. `unplanned` tells that `error` is the reason why no load plan
    can be made: then nothing is wrong, nor right. `crashed` tells that `error` is a fault of the comparison itself.
    """

    rank: int = 0
    live: list[LivePart] = field(factory=list)
    counts: list[CountPart] = field(factory=list)
    read: dict[str, list[Lattice]] = field(factory=dict)
    unknown: list[str] = field(factory=list)
    layouts: list[WrongLayout] = field(factory=list)
    looks: list[LookPart] = field(factory=list)
    bytes: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    sampled: bool = False
    error: str = ""
    unplanned: bool = False
    crashed: bool = False
    sent: int = 0
    unwritten: str = ""

    def failed(self, error: Exception) -> None:
        """
        Keep what ended the work of this rank, the first time.

        A file or a tensor that cannot be read is a refusal, in its own words; anything else is a crash.
        """
        if self.error:
            return
        self.crashed = not isinstance(error, (OSError, TargetError, Unreadable, RankError, MemoryError))
        self.error = f"{type(error).__name__}: {error}{_place(error) if self.crashed else ''}"


def _place(error: Exception) -> str:
    """Where an error was raised: ` (walk.py, line 12)`."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
