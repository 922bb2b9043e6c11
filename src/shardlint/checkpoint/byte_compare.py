"""Comparing the stored bytes of two tensors in bounded pieces, within a budget."""

from __future__ import annotations

import contextlib
from pathlib import Path

from attrs import define, field

from ..facts import EntryFacts, FileFacts
from .files import FileRefusedError, inside, opened
from .safetensors_header import read_at

PIECE = 2**20  # bytes
BUDGET = 2**30  # bytes read on either side of all comparisons together


@define(kw_only=True)
class ByteComparer:
    """Compares entries of the files of one folder. `budget` is what is left to read, in bytes."""

    folder: Path
    data_starts: dict[str, int]
    budget: int = BUDGET
    _stack: contextlib.ExitStack = field(factory=contextlib.ExitStack)
    _open: dict[str, int] = field(factory=dict)

    @classmethod
    def of(cls, folder: Path, files: tuple[FileFacts, ...]) -> ByteComparer:
        """Return a comparer for the files whose headers were read."""
        return cls(folder=folder, data_starts={file.name: file.header_bytes for file in files if file.opened})

    def __enter__(self) -> ByteComparer:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(FileRefusedError):
            self._stack.close()

    def equal(self, first: EntryFacts, second: EntryFacts) -> bool | None:
        """Whether both hold the same values bit for bit; None when that cannot be said within the budget."""
        if (first.dtype, first.shape) != (second.dtype, second.shape):
            return False
        try:
            return self._equal(first, second)
        except (FileRefusedError, OSError, KeyError):
            return None

    def _equal(self, first: EntryFacts, second: EntryFacts) -> bool | None:
        size = first.end - first.begin
        if size != second.end - second.begin:
            return False
        places = [
            (self._descriptor(entry.file), self.data_starts[entry.file] + entry.begin) for entry in (first, second)
        ]
        for done in range(0, size, PIECE):
            count = min(PIECE, size - done)
            if self.budget < count:
                return None
            self.budget -= count
            left, right = (read_at(descriptor, count, start + done) for descriptor, start in places)
            if len(left) != count or len(right) != count:
                return None
            if left != right:
                return False
        return True

    def _descriptor(self, name: str) -> int:
        if name not in self._open:
            if len(self._open) >= 64:
                raise OSError("too many files are open for comparing")
            self._open[name] = self._stack.enter_context(opened(inside(self.folder, name)))
        return self._open[name]
