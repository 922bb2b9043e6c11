"""
The `values` section: statistics of what the tensors hold, and what became of values that can be computed again.

Values of weights are never kept: minimum, maximum and counts are. Of a sharded tensor they are those of this rank's
part.
"""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class TensorValues:
    """
    Statistics of one tensor, by its first name. `elements` is the number that this rank holds.

    `minimum` and `maximum` are those of the finite elements, None when there are none. `nan`, `positive_infinite` and
    `negative_infinite` count. `constant` says that all elements are equal. `magnitude` is the median absolute value of
    a sample, of floating tensors narrower than 32 bits. `unwritten` counts elements that still hold what `watch_writes`
    put there, None when nobody watched and where no pattern can be put. `as_stored` says of a constant tensor that the
    checkpoint's tensors from which it comes were read and are the same constant.

    Of a complex tensor, the extremes are those of real and imaginary parts. Of a quantised one, everything is that of
    its codes and scales together, and the extremes are those of the scales.
    """

    fqn: str
    elements: int
    minimum: float | None = None
    maximum: float | None = None
    nan: int = 0
    positive_infinite: int = 0
    negative_infinite: int = 0
    constant: bool = False
    magnitude: float | None = None
    unwritten: int | None = None
    as_stored: bool = False

    @property
    def finite(self) -> bool:
        """Whether no element is NaN or infinite."""
        return not (self.nan or self.positive_infinite or self.negative_infinite)

    @property
    def zero(self) -> bool:
        """Whether every element is zero."""
        return self.finite and self.minimum == 0 and self.maximum == 0


@frozen(kw_only=True)
class SkippedTensor:
    """A tensor whose values were not looked at, and why."""

    fqn: str
    reason: str


@frozen(kw_only=True)
class DerivedBuffer:
    """
    A buffer that follows from the configuration, and how what it holds compares with what was computed again.

    `recipe` says how it was computed. `status` is equal, low-precision (equal but for the rounding of a narrower
    dtype), wrong, changing (it differs, and may: it begins as a constant, as counters and caches do), or unknown
    (`detail` says why). `error` is the largest relative error of an element. `declared` tells that the recipe is one
    of the contract's, `contract recipe NAME`. `falls` says of an unknown `inv_freq` whether its numbers are positive
    and fall, None of any other buffer.
    """

    fqn: str
    recipe: str
    status: str
    error: float | None = None
    detail: str = ""
    declared: bool = False
    falls: bool | None = None


@frozen(kw_only=True)
class PrecisionCritical:
    """
    A tensor that is declared or known to need 32 bits. `because` says why, `declared` that its class says so, and
    `strict` that the class insists on it whatever dtype is asked for.

    `source_dtype` is that of the checkpoint's tensor `source_key`, None when there is none. `collapsed` counts those
    of the `distinct` source values that become equal to another one in `dtype`, None when they were not compared.
    """

    fqn: str
    dtype: str
    because: str
    declared: bool = False
    strict: bool = False
    source_key: str | None = None
    source_dtype: str | None = None
    distinct: int | None = None
    collapsed: int | None = None


@frozen(kw_only=True)
class ValuesFacts:
    """
    What was seen of values. `watched` says whether `shardlint.watch_writes` was called on the model before.

    `uninitialised` names the tensors that Transformers found nothing for in the checkpoint, that the initialiser of
    their model does not write, and that nobody wrote to since.
    """

    tensors: tuple[TensorValues, ...] = ()
    skipped: tuple[SkippedTensor, ...] = ()
    derived: tuple[DerivedBuffer, ...] = ()
    critical: tuple[PrecisionCritical, ...] = ()
    watched: bool = False
    uninitialised: tuple[str, ...] = ()

    def by_name(self) -> dict[str, TensorValues]:
        """The statistics by first name."""
        return {tensor.fqn: tensor for tensor in self.tensors}
