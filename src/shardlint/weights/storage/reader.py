"""
Read lattices of stored tensors, of lazy nodes and of constants into one reused buffer; evaluate boxes.

A reader belongs to one thread. What it returns is valid until its next call. Memory: one buffer of `BUFFER_BYTES`,
and for lazy nodes a small multiple of the elements asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ..compare.bits import UNSIGNED, Bits, bits_of, values_of
from ..compare.tiles import BUFFER_BYTES, packed_elements, skips, span
from ..symbolic.arithmetic import apply_steps
from ..symbolic.blocks import Block
from ..symbolic.radix import extent, split_flat
from ..symbolic.tensor import Held, Node, SymbolicTensor
from .stored_tensors import Files, TensorSource

Lattice = Sequence[tuple[int, int]]
PAGE = 4096


class Reader:
    """
    Reads parts of sources by key. `sources` are the stored tensors, `files` the open files they share.

    The buffer begins at a page, and a run lies in it as it lies in its page of the file: processors copy several times
    slower when the target is a few bytes further into its cache line than the source.
    """

    def __init__(self, sources: Mapping[str, TensorSource], files: Files, capacity: int = BUFFER_BYTES) -> None:
        self._sources = sources
        self._files = files
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        room: Bits = np.empty(capacity + 2 * PAGE, dtype=np.uint8)
        skipped = -int(room.ctypes.data) % PAGE
        self._buffer: Bits = room[skipped : skipped + capacity + PAGE]
        self._view = memoryview(self._buffer)  # type: ignore[arg-type]
        self._address = int(self._buffer.ctypes.data)

    def dtype_of(self, source: str | Node) -> torch.dtype:
        """The dtype of the elements of a source."""
        return source.dtype if isinstance(source, Node) else self._sources[source].dtype

    def run(self, source: str, start: int, count: int) -> int:
        """Read `count` consecutive elements of a stored tensor, at most the capacity; return where they are."""
        stored = self._sources[source]
        item = stored.dtype.itemsize
        at = (stored.begin + start * item) % PAGE
        stored.read_into(self._files, self._view[at : at + count * item], start * item)
        return self._address + at

    def patterns(self, source: str | Node, offset: int, lattice: Lattice) -> Bits:
        """The bit patterns of the elements of a lattice, shaped like its digits. A view, not contiguous in general."""
        item = self.dtype_of(source).itemsize
        wanted = packed_elements(lattice, item) * item
        if wanted > self._buffer.size:
            self._allocate(wanted)
        first, strides = self._pack(source, offset, lattice, 0)
        shape = [size for size, _ in lattice]
        flat = self._buffer[: self._buffer.size // item * item].view(UNSIGNED[item])
        return np.ndarray(shape, flat.dtype, flat, first * item, [stride * item for stride in strides])

    def _pack(self, source: str | Node, offset: int, lattice: Lattice, at: int) -> tuple[int, list[int]]:
        """Fill the buffer from element `at` on; return where the lattice's first element is, and its strides there."""
        item = self.dtype_of(source).itemsize
        if lattice and skips(*lattice[0], lattice[1:], item):
            (size, stride), inner = lattice[0], lattice[1:]
            width = packed_elements(inner, item)
            found = [self._pack(source, offset + k * stride, inner, at + k * width) for k in range(size)]
            first, strides = found[0]
            return first, [width, *strides]
        low = sum((size - 1) * stride for size, stride in lattice if stride < 0)
        self._fill(source, offset + low, span(lattice), at)
        return at - low, [stride for _, stride in lattice]

    def _fill(self, source: str | Node, start: int, count: int, at: int) -> None:
        item = self.dtype_of(source).itemsize
        target = self._buffer[at * item : (at + count) * item]
        if isinstance(source, Node):
            target[:] = bits_of(self._node_run(source, start, count)).view(np.uint8)
        else:
            self._sources[source].read_into(self._files, memoryview(target), start * item)  # type: ignore[arg-type]

    def _node_run(self, node: Node, start: int, count: int) -> torch.Tensor:
        """Consecutive elements of a lazy node in row-major order, computed box by box."""
        if isinstance(node, Held):
            return node.values[start : start + count]
        inner = Reader(self._sources, self._files, 1)
        out = torch.empty(count, dtype=node.dtype)
        at = 0
        for origin, lists, _ in sorted(split_flat(start, ((count, 1),), node.shape)):
            sizes = [extent(radix) for radix in lists]
            values = node.function(*(inner.box(tensor, origin, sizes) for tensor in node.inputs))
            out[at : at + values.numel()] = values.reshape(-1)
            at += values.numel()
        return out

    def box(self, tensor: SymbolicTensor, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """The values of a sub-box of a symbolic tensor, in its dtype."""
        out = torch.empty(tuple(sizes), dtype=tensor.dtype)
        for block in tensor.restricted(offsets, sizes):
            where = tuple(slice(low, low + size) for low, size in zip(block.lo, block.size, strict=True))
            out[where] = self.values(block, tensor.dtype)
        return out

    def values(self, block: Block, dtype: torch.dtype) -> torch.Tensor:
        """The values of a block in its shape, its steps applied; `dtype` is that of a constant."""
        if block.source is None:
            return apply_steps(torch.full(block.size, block.fill, dtype=dtype), block.steps)
        digits = block.digits
        order = sorted(range(len(digits)), key=lambda k: (digits[k][1] != 0, -abs(digits[k][1])))
        found = self.patterns(block.source, block.offset, [digits[k] for k in order])
        found = found.transpose([order.index(k) for k in range(len(order))])
        plain = values_of(np.ascontiguousarray(found), self.dtype_of(block.source))
        return apply_steps(plain.reshape(block.size), block.steps)
