"""Whether the chunks of a tensor cover it exactly once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from attrs import define, frozen

MAX_COMPARISONS = 1_000_000  # of chunks that form no grid, in one folder; what meshes write forms one and takes none


@define
class Budget:
    """How many comparisons of two chunks are left."""

    left: int = MAX_COMPARISONS

    def spend(self, count: int) -> None:
        """Take `count` off. Raises `OverflowError` when nothing is left."""
        self.left -= count
        if self.left < 0:
            raise OverflowError("too many chunks lie across each other")


@frozen
class Chunk:
    """A box of a tensor: where it begins and how large it is, in elements, by dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def chunk_faults(
    shape: tuple[int, ...], chunks: Sequence[Chunk], budget: Budget | None = None
) -> Iterator[tuple[str, str]]:
    """
    Yield what is wrong with the chunks of a tensor of `shape`, as kinds of `FileProblem` with details.

    chunk-bounds: outside the tensor, or of another number of dimensions; chunk-overlap: two share elements;
    chunk-hole: elements that no chunk holds. Chunks without elements are those of ranks that hold nothing. When the
    budget is spent the kind is metadata-schema.
    """
    outside = [chunk for chunk in chunks if not _fits(shape, chunk)]
    for chunk in outside[:3]:
        yield "chunk-bounds", f"the chunk at {list(chunk.offsets)} of {list(chunk.sizes)} leaves {list(shape)}"
    if outside:
        return
    full = sorted({chunk for chunk in chunks if math.prod(chunk.sizes)}, key=lambda chunk: chunk.offsets)
    try:
        pair = _overlapping(full, budget or Budget())
    except OverflowError:
        yield "metadata-schema", f"its {len(full)} chunks lie across each other in a way that no mesh gives"
        return
    if pair is not None:
        first, second = pair
        yield (
            "chunk-overlap",
            f"the chunks at {list(first.offsets)} of {list(first.sizes)} and at {list(second.offsets)} of "
            f"{list(second.sizes)} share elements",
        )
        return
    covered, wanted = sum(math.prod(chunk.sizes) for chunk in full), math.prod(shape)
    if covered < wanted:
        yield "chunk-hole", f"its {len(full)} chunks hold {covered} of {wanted} elements of {list(shape)}"


def _fits(shape: tuple[int, ...], chunk: Chunk) -> bool:
    if not len(shape) == len(chunk.offsets) == len(chunk.sizes):
        return False
    return all(offset + size <= length for offset, size, length in zip(chunk.offsets, chunk.sizes, shape, strict=True))


def _overlapping(chunks: Sequence[Chunk], budget: Budget) -> tuple[Chunk, Chunk] | None:
    """Return two chunks, of those sorted by offsets, that share elements. Raises `OverflowError` beyond the budget."""
    if _is_grid(chunks):
        return None
    open_chunks: list[Chunk] = []
    for chunk in chunks:
        if not chunk.offsets:
            if open_chunks:
                return open_chunks[0], chunk
            open_chunks.append(chunk)
            continue
        open_chunks = [other for other in open_chunks if other.offsets[0] + other.sizes[0] > chunk.offsets[0]]
        budget.spend(len(open_chunks) + 1)
        neighbour = next((other for other in open_chunks if _meet(other, chunk)), None)
        if neighbour is not None:
            return neighbour, chunk
        open_chunks.append(chunk)
    return None


def _is_grid(chunks: Sequence[Chunk]) -> bool:
    """Whether the chunks lie in the cells of one grid, no two in the same: then none share elements."""
    if len({chunk.offsets for chunk in chunks}) != len(chunks):
        return False
    for axis in range(len(chunks[0].offsets) if chunks else 0):
        spans = sorted({(chunk.offsets[axis], chunk.sizes[axis]) for chunk in chunks})
        if any(begin + size > following for (begin, size), (following, _) in pairwise(spans)):
            return False
    return True


def _meet(first: Chunk, second: Chunk) -> bool:
    return all(
        begin < other + length and other < begin + size
        for begin, size, other, length in zip(first.offsets, first.sizes, second.offsets, second.sizes, strict=True)
    )
