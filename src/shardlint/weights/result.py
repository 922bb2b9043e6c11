"""The outcome of a verification as plain data: rows, verdict, and what was left out with its reason. No torch."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from attrs import field, frozen

from ..names import natural_key, ranges
from .compare.counts import Difference

RANK_FAILED = "not compared, because a rank failed"


class RowStatus(enum.Enum):
    """
    What became of one tensor, worst last.

    NON_FINITE: every element is what the checkpoint holds, and some of them are infinite or not a number.
    NOT_COMPARED: nothing stored holds its values, so nobody can say whether they are right. INCOMPLETE: elements of it
    have no counterpart, or were not reached, which is wrong.
    """

    EXCLUDED = "EXCLUDED"
    EXACT = "EXACT"
    DTYPE_CAST = "DTYPE_CAST"
    NON_FINITE = "NON_FINITE"
    NOT_COMPARED = "NOT_COMPARED"
    INCOMPLETE = "INCOMPLETE"
    MISMATCH = "MISMATCH"

    @property
    def badness(self) -> int:
        """Larger is worse."""
        return list(RowStatus).index(self)


class RowKind(enum.Enum):
    """What a row is about: a live tensor, a stored tensor, or the padding of a live shard."""

    LIVE = "live"
    CHECKPOINT = "checkpoint"
    PADDING = "padding"


class WeightsVerdict(enum.Enum):
    """
    PASS: every element of both sides was compared and is right. FAIL: something is wrong, or has no counterpart.

    INCOMPLETE: nothing wrong was seen, but not everything was looked at (a sample, or an interrupted run).
    """

    PASS = "PASS"
    FAIL = "FAIL"
    INCOMPLETE = "INCOMPLETE"


class WeightsDifferError(AssertionError):
    """Raised by `Result.raise_for_failure`; `result` is the whole result."""

    def __init__(self, result: Result, text: str) -> None:
        self.result = result
        super().__init__(text)


@frozen(kw_only=True)
class Row:
    """
    One tensor: counts over all ranks, in elements.

    `sources` are the checkpoint keys of a live tensor and the live names of a stored one. `lower_bounds` tells that
    the maximum errors were measured on some of the differing tiles only; a maximum is None when it is not finite.
    `first` is the first difference, `special` the first element of which a side is not finite. `ranks` are those on
    which the tensor differs, in order.

    `look` says what a tensor that differs looks like, to be read after its name, where that is known (`equals the
    stored tensor transposed`). `median_abs` is the median of the differences and `bits` the number of low bits in
    which they lie, of tensors that were looked at again.
    """

    kind: RowKind
    name: str
    status: RowStatus
    shape: tuple[int, ...] = ()
    dtype: str = ""
    checked: int = 0
    expected: int = 0
    exact_mismatches: int = 0
    load_mismatches: int = 0
    nonfinite: int = 0
    max_abs: float | None = 0.0
    max_load_abs: float | None = 0.0
    lower_bounds: bool = False
    first: Difference | None = None
    special: Difference | None = None
    sources: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    reason: str = ""
    ranks: tuple[int, ...] = ()
    look: str = ""
    median_abs: float | None = None
    bits: int = 0

    @property
    def order(self) -> tuple[object, ...]:
        """Worst first: status, then the share of wrong elements, then the name."""
        return (
            -self.status.badness,
            -bool(self.nonfinite),
            -(self.load_mismatches + self.nonfinite),
            -self.exact_mismatches,
            self.kind.value,
            natural_key(self.name),
        )


@frozen(kw_only=True)
class WrongLayout:
    """
    A shard whose bits are right for another placement than the declared one.

    `declared` and `found` write both placements of the mesh axis.
    """

    name: str
    declared: str
    found: str
    ranks: tuple[int, ...] = ()


@frozen(kw_only=True)
class ReplicaGroup:
    """
    Ranks that hold the same shard with different bits: `ranks` beside `reference`.

    `what` differs: bits, shape (or dtype), or absent: some of the ranks do not have it.
    """

    name: str
    reference: int
    ranks: tuple[int, ...]
    what: str = "bits"

    @property
    def text(self) -> str:
        """What differs, in words."""
        others = f"rank{'s' if len(self.ranks) > 1 else ''} {ranges(self.ranks)}"
        if self.what == "absent":
            return f"{others} and rank {self.reference} do not both have it"
        if self.what == "shape":
            return f"its shape or dtype on {others} is not that on rank {self.reference}"
        return f"its bits on rank {ranges(self.ranks)} are not those on rank {self.reference}"

    @property
    def everywhere(self) -> tuple[int, ...]:
        """All ranks concerned, sorted."""
        return tuple(sorted((self.reference, *self.ranks)))


@frozen(kw_only=True)
class ReferenceScope:
    """What the live side was compared with: the files that hold it, and how much they hold."""

    files: tuple[str, ...] = ()
    tensors: int = 0
    elements: int = 0
    bytes: int = 0


@frozen(kw_only=True)
class Result:
    """
    Everything that a verification found.

    `errors` are rank errors as (rank, text); `crashed` are the ranks of which the error is a fault of the comparison
    itself, so that nothing is known of the weights. `incomplete` says in one clause why not everything was looked at;
    empty when everything was. `checkpoint` is empty when only replicas were compared. `exchanged` are the bytes that
    each rank sent. `compared_bytes` counts the live side. `unwritten` are reports that could not be written, as
    (rank, why). `phase` is when the check was made, in the words of the caller. `compared_replicas` is the number of
    shards that several ranks hold, and whose digests were compared. `undecided` are tensors whose bits differ between
    ranks where nothing says that they hold replicas. `renamed` are the tensors of a checkpoint that its reference has
    under another name, with that name: same bits.
    """

    rows: tuple[Row, ...]
    renamed: tuple[tuple[str, str], ...] = ()
    layouts: tuple[WrongLayout, ...] = ()
    replicas: tuple[ReplicaGroup, ...] = ()
    errors: tuple[tuple[int, str], ...] = ()
    crashed: tuple[int, ...] = ()
    undecided: tuple[str, ...] = ()
    incomplete: str = ""
    checkpoint: str = ""
    world_size: int = 1
    compared_bytes: int = 0
    seconds: float = field(default=0.0, eq=False)
    exchanged: tuple[int, ...] = ()
    unwritten: tuple[tuple[int, str], ...] = ()
    scope: ReferenceScope = ReferenceScope()
    phase: str = ""
    compared_replicas: int = 0

    @property
    def verdict(self) -> WeightsVerdict:
        """PASS, FAIL or INCOMPLETE."""
        wrong = any(row.status in (RowStatus.MISMATCH, RowStatus.INCOMPLETE) or row.nonfinite for row in self.rows)
        if wrong or self.errors or self.layouts or self.replicas or self.unwritten:
            return WeightsVerdict.FAIL
        nothing = bool(self.checkpoint) and not self.rows
        return WeightsVerdict.INCOMPLETE if self.incomplete or nothing else WeightsVerdict.PASS

    def raise_for_failure(self) -> None:
        """Raises `WeightsDifferError` unless the verdict is PASS. Under a job it does so on every rank."""
        if self.verdict is WeightsVerdict.PASS:
            return
        from .report_text import as_text

        raise WeightsDifferError(self, as_text(self))

    def of_kind(self, kind: RowKind) -> tuple[Row, ...]:
        """The rows of one kind."""
        return tuple(row for row in self.rows if row.kind is kind)

    def worst(self, limit: int | None = 50) -> tuple[Row, ...]:
        """
        The worst rows: those that are right left out, and stored tensors whose fault a live row shows.

        All of them when `limit` is None.
        """
        bad = (
            row
            for row in self.rows
            if row.status.badness > RowStatus.EXACT.badness
            and not (row.kind is RowKind.CHECKPOINT and row.status is not RowStatus.INCOMPLETE)
        )
        return tuple(sorted(bad, key=lambda row: row.order)[:limit])

    def count(self, status: RowStatus, kind: RowKind = RowKind.LIVE) -> int:
        """How many tensors of a kind have a status."""
        return sum(row.status is status for row in self.rows if row.kind is kind)


def sorted_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows worst first."""
    return tuple(sorted(rows, key=lambda row: row.order))
