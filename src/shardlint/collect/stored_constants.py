"""Constant tensors that are constant in the checkpoint too: somebody wrote them, though they look as if nobody had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attrs import evolve

from ..checkpoint.files import FileRefusedError
from ..facts import EntryFacts, Facts, TensorValues
from .precision import STORED, sources_of, stored_bytes

_WHOLE = 2**22  # bytes
_SLICE = 2**16  # bytes, a multiple of every element's size
_ROUNDING = 1e-2


def with_stored(tensors: Iterable[TensorValues], facts: Facts, checkpoint: Path | None) -> Iterator[TensorValues]:
    """The statistics, with a look at the stored bytes of constant ones: at a part of them when there are many."""
    sources: Mapping[str, tuple[EntryFacts, ...]] | None = None
    for seen in tensors:
        if checkpoint is None or facts.checkpoint is None or not seen.constant or seen.minimum is None:
            yield seen
            continue
        sources = sources_of(facts) if sources is None else sources
        entries = sources.get(seen.fqn, ())
        alike = bool(entries) and all(_is_constant(checkpoint, entry, facts, seen.minimum) for entry in entries)
        yield evolve(seen, as_stored=True) if alike else seen


def _is_constant(checkpoint: Path, entry: EntryFacts, facts: Facts, value: float) -> bool:
    import torch

    if entry.dtype not in STORED or entry.end <= entry.begin:
        return False
    dtype = getattr(torch, STORED[entry.dtype][0])
    try:
        for begin, end in _ranges(entry):
            data = stored_bytes(checkpoint, entry, facts, begin, end)
            numbers = torch.frombuffer(bytearray(data), dtype=dtype).double()
            if not bool(((numbers - value).abs() <= _ROUNDING * abs(value)).all()):
                return False
    except (FileRefusedError, OSError, KeyError, ValueError):
        return False
    return True


def _ranges(entry: EntryFacts) -> Iterator[tuple[int, int]]:
    """What is read of an entry: bytes from its begin on."""
    size = entry.end - entry.begin
    if size <= _WHOLE:
        yield 0, size
        return
    for begin in (0, size // 2 // _SLICE * _SLICE, (size - _SLICE) // 8 * 8):
        yield begin, begin + _SLICE
