"""Read every stored tensor of a folder once, in bounded memory, and keep what its values look like."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from attrs import define

from ..facts import CheckpointFacts
from .compare.bits import UNSIGNED, Bits, dtype_name, has_nonfinite, is_opaque, nonfinite_mask, values_of
from .compare.diagnose import unravel
from .compare.threads import Options, in_order, thread_count
from .folder_values import FolderValues, StoredValues
from .storage import dcp
from .storage.reader import Reader
from .storage.stored_tensors import Files, SourceSet, TensorSource, sources_of
from .symbolic.tensor import SymbolicTensor

CHUNK_BYTES = 1 << 20
_OPTIMIZER = "optim"
# Columns that are compared of two matrices that may be the transposed of each other.
_COLUMNS = 64
# Float32 and the dtypes with its exponents; in the others small weights are subnormal as a matter of course.
_WIDE = {"float32", "bfloat16", "float64"}


def scan(checkpoint: CheckpointFacts, options: Options) -> FolderValues:
    """Read all tensors of a checkpoint. Raises `ReadError` for a file that cannot be read."""
    sources = _sources(checkpoint)
    stop, total = threading.Event(), sum(source.nbytes for source in sources.tensors.values())
    found: list[StoredValues] = []
    done = 0
    with Files() as files:
        pending = iter(sources.tensors.values())
        for values in in_order(lambda source: _values(source, files, options), pending, thread_count(options), stop):
            if options.stopped:
                return FolderValues(tensors=tuple(found), refused=tuple(sources.refused.items()), interrupted=True)
            found.append(values)
            done += sources.tensors[values.name].nbytes
            if options.progress:
                options.progress(done, total, "weights")
        pairs = tuple(_transposed(found, sources, files))
    return FolderValues(tensors=tuple(found), refused=tuple(sources.refused.items()), transposed=pairs)


def _sources(checkpoint: CheckpointFacts) -> SourceSet:
    if checkpoint.format != "dcp":
        return sources_of(checkpoint)
    folder = dcp.read_folder(Path(checkpoint.path))
    weights = {
        name: source
        for name, source in folder.tensors.items()
        if not any(part.startswith(_OPTIMIZER) for part in name.split("."))
    }
    return SourceSet(tensors=weights, refused=folder.refused)


@define
class _Sums:
    """The counts of one tensor while it is read."""

    nonfinite: int = 0
    first: int = -1
    zeros: int = 0
    subnormal: int = 0
    low: float = math.inf
    high: float = -math.inf
    order_free: int = 0

    def add(self, patterns: Bits, at: int, dtype: torch.dtype) -> None:
        """Count the elements from position `at` on."""
        values = values_of(patterns, dtype)
        if dtype.itemsize < 4 or not dtype.is_floating_point:
            values = values.float()
        if has_nonfinite(patterns, dtype):
            mask = nonfinite_mask(patterns, dtype)
            self.first = at + int(mask.argmax()) if self.first < 0 else self.first
            self.nonfinite += int(np.count_nonzero(mask))
            values = values[torch.from_numpy(~mask)]
        if values.numel():
            low, high = torch.aminmax(values)
            self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        self.zeros += int(values.numel() - torch.count_nonzero(values))
        if dtype_name(dtype) in _WIDE:
            tiny = torch.finfo(dtype).tiny
            self.subnormal += int(torch.count_nonzero(values.abs() < tiny)) - int(
                values.numel() - torch.count_nonzero(values)
            )
        wide = patterns.astype(np.uint64)
        self.order_free = (self.order_free + int((wide * wide * wide + wide).sum(dtype=np.uint64))) % (1 << 64)


def _values(source: TensorSource, files: Files, options: Options) -> StoredValues:
    sums, digest = _Sums(), hashlib.blake2b(digest_size=16)
    numbers = source.dtype.is_floating_point and not is_opaque(source.dtype)
    item = source.dtype.itemsize
    count = CHUNK_BYTES // item
    buffer: Bits = np.empty(min(count, source.volume) * item, dtype=np.uint8)
    for at in range(0, source.volume, count):
        if options.stopped:
            break
        part = buffer[: min(count, source.volume - at) * item]
        source.read_into(files, memoryview(part), at * item)  # type: ignore[arg-type]
        digest.update(part)  # type: ignore[arg-type]
        if numbers:
            sums.add(part.view(UNSIGNED[item]), at, source.dtype)
        options.beat()
    return StoredValues(
        name=source.key,
        shape=source.shape,
        dtype=dtype_name(source.dtype),
        numbers=numbers,
        elements=source.volume,
        nonfinite=sums.nonfinite,
        first_nonfinite=unravel(sums.first, source.shape) if sums.first >= 0 else (),
        zeros=sums.zeros,
        subnormal=sums.subnormal,
        low=sums.low if sums.low <= sums.high else 0.0,
        high=sums.high if sums.low <= sums.high else 0.0,
        digest=digest.hexdigest(),
        order_free=sums.order_free,
    )


def _transposed(found: list[StoredValues], sources: SourceSet, files: Files) -> Iterator[tuple[str, str]]:
    """Pairs of kin of which one is the other transposed: those with the same elements in any order are compared."""
    groups: dict[tuple[object, ...], list[StoredValues]] = {}
    for values in found:
        if values.is_matrix and len(values.shape) == 2 and values.varies:
            groups.setdefault((values.pattern, values.dtype, values.order_free), []).append(values)
    for members in groups.values():
        first = members[0]
        for other in members[1:]:
            turned = first.shape == other.shape[::-1] and first.digest != other.digest
            if turned and _is_transposed(sources.tensors[first.name], sources.tensors[other.name], files):
                yield first.name, other.name


def _is_transposed(one: TensorSource, two: TensorSource, files: Files) -> bool:
    """Whether the first columns of one are the first rows of the other; their elements are the same as a whole."""
    columns = min(_COLUMNS, one.shape[1])
    left = Reader({one.key: one}, files, 1).box(
        SymbolicTensor.leaf(one.key, one.shape, one.dtype), (0, 0), (one.shape[0], columns)
    )
    right = Reader({two.key: two}, files, 1).box(
        SymbolicTensor.leaf(two.key, two.shape, two.dtype), (0, 0), (columns, two.shape[1])
    )
    return bool(torch.equal(left.double().t(), right.double()))
