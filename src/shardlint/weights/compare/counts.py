"""What comparing found, per live tensor and checkpoint tensor; sums of the parts that several threads looked at."""

from __future__ import annotations

from attrs import define, frozen


@frozen(kw_only=True)
class Difference:
    """
    One element that differs. Values are written as text, with their bit patterns in hexadecimal.

    `cast_only` tells that the element equals the reference once that is cast to the storage dtype. `live_index` counts
    within the local shard, `checkpoint_index` within the stored tensor; both are empty for a constant.
    """

    live_key: str
    live_index: tuple[int, ...]
    checkpoint_key: str
    checkpoint_index: tuple[int, ...]
    actual: str
    actual_bits: str
    reference: str
    reference_bits: str
    reference_in_storage_dtype: str
    storage_dtype: str
    reference_dtype: str
    cast_only: bool
    rank: int = 0


@define
class Tally:
    """
    Counts over the elements compared so far.

    The maximum errors are in float64, None when one is not finite or not a number; `counted_tiles` differing tiles
    were only counted, so that then the maxima are lower bounds. `special` is the first element of which a side is not
    finite, whether the sides differ or not.
    """

    checked: int = 0
    exact_mismatches: int = 0
    load_mismatches: int = 0
    nonfinite: int = 0
    max_abs: float | None = 0.0
    max_load_abs: float | None = 0.0
    detailed_tiles: int = 0
    counted_tiles: int = 0
    first: Difference | None = None
    special: Difference | None = None

    def offer(self, difference: Difference) -> None:
        """Keep the first difference; a real one beats one that only the cast made."""
        if self.first is None or (self.first.cast_only and not difference.cast_only):
            self.first = difference

    def add(self, other: Tally) -> None:
        """Add what another part found; parts are added in order."""
        self.checked += other.checked
        self.exact_mismatches += other.exact_mismatches
        self.load_mismatches += other.load_mismatches
        self.nonfinite += other.nonfinite
        self.max_abs = larger(self.max_abs, other.max_abs)
        self.max_load_abs = larger(self.max_load_abs, other.max_load_abs)
        self.detailed_tiles += other.detailed_tiles
        self.counted_tiles += other.counted_tiles
        if other.first is not None:
            self.offer(other.first)
        self.special = self.special or other.special


def larger(one: float | None, two: float | None) -> float | None:
    """The larger error; None, which stands for not finite, beats every number."""
    return None if one is None or two is None else max(one, two)
