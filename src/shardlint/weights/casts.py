"""The casts between two checkpoints: which tensors have another dtype, and what that changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from attrs import evolve

from ..checkpoint.folder import CheckpointError
from ..loading.loader import PlanUnknownError
from ..target import Fusion
from . import CastsUnknownError
from .cast_counts import Cast, CastReport
from .checkpoint_boxes import Slab, slabs
from .checkpoint_sides import Side, both_sides, comparable
from .compare.bits import dtype_name, is_opaque, lossless
from .compare.counts import larger
from .compare.threads import Options, in_order, thread_count
from .storage.reader import Reader
from .storage.stored_tensors import Files, ReadError

# Each element takes up to 50 bytes of temporaries in float64.
CAST_SLAB_BYTES = 1 << 19


def casts(
    path: Path,
    reference: Path,
    allow: frozenset[str],
    fusions: Sequence[Fusion],
    *,
    threads: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> CastReport:
    """Count what the casts of `path` changed. Raises `CastsUnknownError`."""
    try:
        one, two = both_sides(path, reference, fusions)
        shared = [name for name in one.regions if name in two.regions and comparable(one, two, name)]
        cast = [name for name in shared if one.regions[name].dtype != two.regions[name].dtype]
        found = {name: _empty(one, two, name, allow) for name in cast}
        finished = _count(one, two, found, Options(threads=threads, stop=stop))
    except (PlanUnknownError, CheckpointError, ReadError) as error:
        raise CastsUnknownError(str(error)) from error
    return CastReport(casts=tuple(found.values()), tensors=len(shared), interrupted=not finished)


def _empty(one: Side, two: Side, name: str, allow: frozenset[str]) -> Cast:
    target, source = one.regions[name].dtype, two.regions[name].dtype
    numbers = not (target.is_floating_point or target.is_complex)
    return Cast(
        name=name,
        reference_dtype=dtype_name(source),
        dtype=dtype_name(target),
        elements=one.regions[name].numel(),
        lossless=lossless(source, target),
        integral=numbers and (source.is_floating_point or target == torch.bool),
        allowed=dtype_name(target) in allow,
    )


def _count(one: Side, two: Side, found: dict[str, Cast], options: Options) -> bool:
    """Count the changes of every cast into `found`; false when the run was ended early."""
    stop, local = threading.Event(), threading.local()
    names = [name for name in found if not (is_opaque(one.regions[name].dtype) or is_opaque(two.regions[name].dtype))]
    item = {name: max(one.regions[name].itemsize, two.regions[name].itemsize) for name in names}
    pending = (
        slab for name in names for slab in slabs(name, tuple(one.regions[name].shape), item[name], CAST_SLAB_BYTES)
    )
    with Files() as files:

        def work(slab: Slab) -> tuple[str, Cast]:
            if not hasattr(local, "readers"):
                local.readers = Reader(one.sources, files, 1), Reader(two.sources, files, 1)
            values = [
                reader.box(side.regions[slab.name], slab.offsets, slab.sizes)
                for reader, side in zip(local.readers, (one, two), strict=True)
            ]
            return slab.name, changes(found[slab.name], *values)

        for name, part in in_order(work, pending, thread_count(options), stop):
            found[name] = _sum(found[name], part)
            if options.stopped:
                return False
    return True


def _sum(cast: Cast, part: Cast) -> Cast:
    return evolve(
        cast,
        changed=cast.changed + part.changed,
        flushed=cast.flushed + part.flushed,
        saturated=cast.saturated + part.saturated,
        nonzero=cast.nonzero + part.nonzero,
        max_abs=larger(cast.max_abs, part.max_abs),
    )


def changes(cast: Cast, values: torch.Tensor, reference: torch.Tensor) -> Cast:
    """The counts of one part of a tensor, as a cast of its own."""
    kind = values.dtype
    now, was = values.double().reshape(-1), reference.double().reshape(-1)
    limits = torch.finfo(kind) if kind.is_floating_point else None if kind == torch.bool else torch.iinfo(kind)
    low, high = (float(limits.min), float(limits.max)) if limits else (0.0, 1.0)
    outside = was.isfinite() & ((was > high) | (was < low))
    gone = outside & (~now.isfinite() | (now == high) | (now == low))
    change = (now - was).abs()
    differs = (now != was) & ~(now.isnan() & was.isnan())
    largest = float(change[differs].max()) if bool(differs.any()) else 0.0
    return evolve(
        cast,
        changed=int(differs.sum()),
        flushed=int(((was != 0) & (now == 0)).sum()),
        saturated=int(gone.sum()),
        nonzero=int((was != 0).sum()),
        max_abs=largest if largest < float("inf") else None,
    )
