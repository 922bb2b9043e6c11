"""What casts between two checkpoints changed, as plain data. No torch."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Cast:
    """
    One tensor whose dtype is not that of the reference: counts in elements.

    `flushed` were not zero and are; `saturated` were finite and are infinite, not a number or the largest value of the
    dtype. `max_abs` is the largest change in float64, None when one is not finite. `nonzero` counts the reference.
    `lossless` tells that the dtype holds every value of the other one, `integral` that numbers became integers or
    truth values. `allowed` when the dtype is meant.
    """

    name: str
    reference_dtype: str
    dtype: str
    elements: int
    changed: int = 0
    flushed: int = 0
    saturated: int = 0
    nonzero: int = 0
    max_abs: float | None = 0.0
    lossless: bool = False
    integral: bool = False
    allowed: bool = False

    @property
    def erased(self) -> bool:
        """Whether every element that was not zero became zero."""
        return bool(self.nonzero) and self.flushed == self.nonzero


@frozen(kw_only=True)
class CastReport:
    """The tensors that were cast, and how many both checkpoints have. `interrupted` when the run ended early."""

    casts: tuple[Cast, ...] = ()
    tensors: int = 0
    interrupted: bool = False
