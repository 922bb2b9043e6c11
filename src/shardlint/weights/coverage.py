"""Coverage of both sides: live shards by the boxes compared, stored tensors by the elements read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from .symbolic.blocks import Block, restrict
from .symbolic.radix import extent, split_flat
from .symbolic.tensor import Node
from .symbolic.volume import Lattice, canonical, joined, lattice_volume, run_and_outer, union_volume

# A lattice over a lazy node that falls into more runs than this is not followed into its inputs.
MAX_NODE_RUNS = 4096


class SourceCoverage:
    """
    Which elements of every stored tensor some live tensor was compared with.

    `unknown` names stored tensors that are read behind lazy arithmetic in too many pieces to be followed.
    """

    def __init__(self) -> None:
        self.lattices: dict[str, list[Lattice]] = defaultdict(list)
        self.unknown: set[str] = set()

    def add(self, blocks: Iterable[Block]) -> None:
        """Count what the blocks read."""
        for block in blocks:
            if isinstance(block.source, Node):
                self._add_node(block.source, canonical(block.offset, block.digits))
            elif block.source is not None:
                self.lattices[block.source].append(canonical(block.offset, block.digits))

    def _add_node(self, node: Node, lattice: Lattice) -> None:
        offset, digits = lattice
        length, outer = run_and_outer(digits)
        starts = [offset]
        for size, stride in outer:
            if len(starts) * size > MAX_NODE_RUNS:
                self.unknown |= node.keys()
                return
            starts = [at + step * stride for at in starts for step in range(size)]
        for start in starts:
            for origin, lists, _ in split_flat(start, ((length, 1),) if length > 1 else (), node.shape):
                sizes = [extent(radix) for radix in lists]
                for tensor in node.inputs:
                    self.add(restrict(tensor.blocks, node.shape, origin, sizes))

    def join(self) -> None:
        """Keep as few lattices as have the same union."""
        for key, lattices in self.lattices.items():
            self.lattices[key] = joined(lattices)

    def merge(self, other: Mapping[str, Iterable[Lattice]], unknown: Iterable[str] = ()) -> None:
        """Add what another rank read."""
        for key, lattices in other.items():
            self.lattices[key].extend(lattices)
        self.unknown |= set(unknown)

    def volume(self, key: str) -> int | None:
        """How many elements of a stored tensor were read, each counted once; None when that cannot be told."""
        if key in self.unknown:
            return None
        return lattice_volume(self.lattices.get(key, ()))


def live_volume(blocks: Iterable[Block]) -> int:
    """How many elements of a live tensor the blocks cover, each counted once."""
    return union_volume((block.lo, block.size) for block in blocks)
