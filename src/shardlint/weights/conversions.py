"""
Conversions that need values: how much they take, and how they are cut so that little is in memory at once.

A decoder of a quantisation library is called on a range of the rows of its tensors, or on some of the experts that it
merges. Only conversions that are known to work row by row are cut; all others are evaluated whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen

from .storage.stored_tensors import TensorSource

Rows = tuple[int, int]
Read = Callable[[str, Rows | None], torch.Tensor]
Evaluate = Callable[[Read, Rows | None], Mapping[str, torch.Tensor]]

# What a conversion takes for each element that it gives, besides its input. Decoders of codes make indices and float32
# values on the way: measured, 4 bytes for int4 and mxfp8, 24 for mxfp4 and nvfp4, 31 for mxfp6.
PLAIN_BYTES = 8
CODE_BYTES = 32
CODES_IN_A_WORD = 32  # codes are packed in runs of 32, whatever their size
_ROW_BY_ROW = ("CompressedTensorsDequantize", "Mxfp4Dequantize")


@frozen(kw_only=True)
class ConversionGroup:
    """
    A conversion that needs values. `evaluate(read, rows)` computes its live tensors; `read` gives rows of a stored one.

    `keys` are the stored tensors that it reads, `nbytes` what it takes in memory when it is evaluated whole, `reason`
    why it could not be followed without values. It gives `rows` rows of one live tensor, any multiple of `step` of them
    at a time; it is evaluated whole when `rows` is 0.
    """

    keys: tuple[str, ...]
    nbytes: int
    reason: str
    evaluate: Evaluate
    rows: int = 0
    step: int = 1

    def portions(self, bound: int) -> Iterator[Rows | None]:
        """Yield ranges of rows that take at most `bound` bytes each, as far as a step allows."""
        if not self.rows:
            yield None
            return
        wanted = max(1, bound * self.rows // max(1, self.nbytes) // self.step) * self.step
        for low in range(0, self.rows, wanted):
            yield low, min(low + wanted, self.rows)

    @property
    def smallest(self) -> int:
        """How many bytes the smallest portion takes."""
        return -(-self.nbytes * min(self.step, self.rows) // self.rows) if self.rows else self.nbytes


@frozen
class Part:
    """A stored tensor that takes part in a conversion, and the source pattern by which it does."""

    pattern: str
    source: TensorSource


class Whole:
    """How the parts of a conversion are cut: not at all."""

    rows = 0
    step = 1

    def __init__(self, stored: Sequence[Part]) -> None:
        self.stored = stored

    def parts(self, rows: Rows | None) -> Iterator[tuple[Part, Rows | None]]:
        """Yield the parts that give these rows of the result, each with the rows to read of it (None: all)."""
        for part in self.stored:
            yield part, None


class Experts(Whole):
    """Experts that are merged one after the other: some of them at a time."""

    def __init__(self, stored: Sequence[Part], count: int) -> None:
        super().__init__(stored)
        self.rows = count
        self._lists: dict[str, list[Part]] = {}
        for part in stored:
            self._lists.setdefault(part.pattern, []).append(part)

    def parts(self, rows: Rows | None) -> Iterator[tuple[Part, Rows | None]]:
        """As for all; the rows are experts."""
        low, high = rows or (0, self.rows)
        for parts in self._lists.values():
            for part in parts[low:high]:
                yield part, None


class RowByRow(Whole):
    """One tensor of each kind: the same share of the rows of each; a tensor of one element, and a shape, whole."""

    def __init__(self, stored: Sequence[Part], rows: int, step: int) -> None:
        super().__init__(stored)
        self.rows = rows
        self.step = step
        for part in stored:
            if not _has_no_rows(part):
                self.step = math.lcm(self.step, rows // math.gcd(rows, part.source.shape[0]))

    def parts(self, rows: Rows | None) -> Iterator[tuple[Part, Rows | None]]:
        """As for all."""
        low, high = rows or (0, self.rows)
        for part in self.stored:
            held = 0 if _has_no_rows(part) else part.source.shape[0]
            yield part, (low * held // self.rows, high * held // self.rows) if held else None


def _has_no_rows(part: Part) -> bool:
    return part.source.volume == 1 or not part.source.shape or part.pattern.endswith("weight_shape")


def cutting_of(recipe: Any, stored: Sequence[Part], shape: Sequence[int]) -> Whole:
    """How a conversion that gives one tensor of this shape can be cut."""
    first, *rest = recipe.operations
    if type(first).__name__ not in _ROW_BY_ROW or not shape or not shape[0]:
        return Whole(stored)
    counts = {part.pattern: sum(other.pattern == part.pattern for other in stored) for part in stored}
    if rest:
        merged = all(_keeps_rows(operation) for operation in rest) and set(counts.values()) == {shape[0]}
        return Experts(stored, shape[0]) if merged and type(rest[0]).__name__ == "MergeModulelist" else Whole(stored)
    packed = any(part.pattern.endswith("_packed") for part in stored)
    many = type(first).__name__ == "CompressedTensorsDequantize" and shape[0] % CODES_IN_A_WORD == 0
    found = RowByRow(stored, shape[0], CODES_IN_A_WORD if packed or many else 1)
    rows_fit = any(part.source.shape[:1] == (shape[0],) for part in stored)
    return found if rows_fit and set(counts.values()) == {1} and shape[0] % found.step == 0 else Whole(stored)


def _keeps_rows(operation: Any) -> bool:
    kind, dim = type(operation).__name__, getattr(operation, "dim", None)
    return (kind, dim) == ("MergeModulelist", 0) or (kind == "Concatenate" and isinstance(dim, int) and dim > 0)


def bytes_taken(recipe: Any, stored: Sequence[Part], shape: Sequence[int]) -> int:
    """What a conversion takes in memory that gives a tensor of this shape."""
    each = CODE_BYTES if type(recipe.operations[0]).__name__ in _ROW_BY_ROW else PLAIN_BYTES
    return sum(part.source.nbytes for part in stored) + each * math.prod(shape)


def resized(part: Part, value: torch.Tensor, rows: Rows | None) -> torch.Tensor:
    """The value of a part for these rows: a stored shape says how many rows there are."""
    if rows is None or not part.pattern.endswith("weight_shape"):
        return value
    return torch.cat([value.new_tensor([rows[1] - rows[0]]), value[1:]])
