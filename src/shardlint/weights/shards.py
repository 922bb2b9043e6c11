"""
Live shards: every persistent tensor of a model with the part of the global tensor that this rank holds.

Told by what objects have (`placements`, a device mesh, `to_local`), not by their class, so other frameworks' tensors
take part. Tensors outside the module take part through `ExternalState`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from attrs import evolve, frozen

from ..boxes import PARTIAL, DimRanges, Placement, replay, shape_of
from ..collect.sharding.beside import Beside, layouts_beside
from ..collect.sharding.dtensor import is_dtensor, mesh_facts, mesh_of
from ..collect.sharding.placements import placement
from ..facts.sharding import MeshFacts
from ..introspect.walk import WalkedTensor, walk
from .compare.live_tensor import Unreadable
from .packed import bits_only, is_quantised, statistics
from .symbolic.tensor import SymbolicTensor


@frozen(kw_only=True)
class Layout:
    """How a tensor is declared to lie on its mesh; `ranks` are those of the mesh in row-major order."""

    mesh_shape: tuple[int, ...]
    coordinate: tuple[int, ...]
    placements: tuple[Placement, ...]
    ranks: tuple[int, ...] = ()


@frozen(kw_only=True)
class Shard:
    """
    One local tensor.

    `names` are the names of the tensor in `state_dict()`, the first one canonical. `ranges` say, per tensor dim, which
    indices of the global tensor the local one holds, in its own order. `logical` is the unpadded local shape; storage
    beyond it must be zero. `layout` is None for a tensor that lies on no mesh.
    """

    names: tuple[str, ...]
    local: torch.Tensor
    global_shape: tuple[int, ...]
    ranges: tuple[DimRanges, ...]
    logical: tuple[int, ...]
    layout: Layout | None = None

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.names[0]

    @property
    def is_padded(self) -> bool:
        """Whether the storage is larger than what it holds."""
        return tuple(self.local.shape) != self.logical

    @property
    def held(self) -> torch.Tensor:
        """The local tensor without its padding: a view."""
        local = self.local
        for dim, size in enumerate(self.logical):
            local = local.narrow(dim, 0, size)
        return local


@frozen(kw_only=True)
class ExternalShard:
    """
    One rectangular shard of a tensor outside the module.

    `local` begins at `offsets` of a tensor of `global_shape`; `logical_shape` is its unpadded local shape, None when
    nothing is padded.
    """

    name: str
    local: torch.Tensor
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    logical_shape: tuple[int, ...] | None = None


class ExternalState(Protocol):
    """State outside the module: host embeddings, expert caches. Its shards must cover exactly its parameters."""

    def parameter_names(self) -> Iterable[str]:
        """The names, as in the checkpoint's model, of all external parameters."""

    def shards(self) -> Iterable[ExternalShard]:
        """Describe this rank's shards; nothing is copied."""


def shards_of(
    model: Any, external: ExternalState | None = None, logical: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[Shard, ...]:
    """
    Describe every persistent parameter and buffer, aliases of one tensor as one shard with several names.

    `logical` are the global shapes of tensors whose storage is larger than what they hold.

    Raises `Unreadable` for a Partial or unknown placement, a flattened parameter, meta storage, and storage whose
    shape is not what its layout says; and when there is no tensor at all.
    """
    outside = _external(external)
    found: list[Shard] = []
    if model is not None:
        walked = walk(model)
        beside = layouts_beside(walked)
        found += [shard for item in walked.tensors if (shard := _shard(item, outside, beside)) is not None]
        found += [_replicated(names, tensor) for names, tensor in statistics(walked)]
    found = [_unpadded(shard, logical[shard.name]) if logical and shard.name in logical else shard for shard in found]
    found += outside.values()
    if not found:
        raise Unreadable("expected a model with parameters or persistent buffers, found one without any")
    return tuple(found)


def _unpadded(shard: Shard, shape: tuple[int, ...]) -> Shard:
    """The part of a shard that lies in a smaller global shape; what is left of the storage is padding."""
    fits = len(shape) == len(shard.global_shape)
    if not fits or any(size > held for size, held in zip(shape, shard.global_shape, strict=True)):
        raise Unreadable(
            f"{shard.name}: the logical shape {list(shape)} does not lie in the storage {list(shard.global_shape)}"
        )
    ranges: list[DimRanges] = []
    for size, held in zip(shape, shard.ranges, strict=True):
        kept = [(start, min(length, max(0, size - start))) for start, length in held]
        cut = [index for index, (_, length) in enumerate(held) if kept[index][1] < length]
        if cut and any(length for _, length in kept[cut[0] + 1 :]):
            raise Unreadable(f"{shard.name}: its padding lies between its rows, which is not compared")
        ranges.append(tuple(part for part in kept if part[1]))
    return evolve(shard, global_shape=shape, ranges=tuple(ranges), logical=shape_of(ranges), layout=None)


def _external(state: ExternalState | None) -> dict[str, Shard]:
    if state is None:
        return {}
    found = {shard.name: external_shard(shard) for shard in state.shards()}
    wanted = set(state.parameter_names())
    if wanted != set(found):
        missing, extra = sorted(wanted - set(found)), sorted(set(found) - wanted)
        raise Unreadable(
            f"external state: expected a shard for exactly its parameters; without one {missing}, unknown {extra}"
        )
    return found


def external_shard(item: ExternalShard) -> Shard:
    """The shard that an external description says. Raises `Unreadable` when it contradicts itself."""
    logical = tuple(item.logical_shape or item.local.shape)
    rank = len(item.global_shape)
    if not (len(item.offsets) == len(logical) == item.local.dim() == rank):
        raise Unreadable(f"{item.name}: offsets, shapes and storage have different numbers of dimensions")
    ends = [low + size for low, size in zip(item.offsets, logical, strict=True)]
    inside = all(low >= 0 for low in item.offsets) and all(a <= b for a, b in zip(ends, item.global_shape, strict=True))
    fits = all(size <= held for size, held in zip(logical, item.local.shape, strict=True))
    if not (inside and fits):
        raise Unreadable(
            f"{item.name}: the shard {logical} at {item.offsets} does not lie in {item.global_shape}, or not in its "
            f"storage {tuple(item.local.shape)}"
        )
    ranges = tuple(((low, size),) if size else () for low, size in zip(item.offsets, logical, strict=True))
    return Shard(names=(item.name,), local=item.local, global_shape=item.global_shape, ranges=ranges, logical=logical)


def _shard(item: WalkedTensor, outside: dict[str, Shard], beside: Mapping[int, Beside]) -> Shard | None:
    names = tuple(name for name in sorted(item.names, key=lambda name: name != item.fqn) if name not in item.hidden)
    names = tuple(name for name in names if name not in outside)
    if not names:
        return None
    tensor = item.tensor
    if type(tensor).__name__ == "FlatParameter" or names[0].rpartition(".")[2] == "_flat_param":
        raise Unreadable(
            f"{names[0]}: a parameter flattened by FSDP1 is not one rectangle; use FSDP2, or "
            "use_orig_params=True with sharding strategy NO_SHARD"
        )
    if is_dtensor(tensor):
        placements = tuple(placement(item) for item in tensor.placements)
        shape = tuple(int(size) for size in tensor.shape)
        return _distributed(names, local_of(tensor), shape, mesh_facts(mesh_of(tensor)), placements)
    if id(tensor) in beside:
        layout = beside[id(tensor)]
        return _distributed(names, tensor.detach(), layout.shape, layout.mesh, layout.placements)
    return _replicated(names, bits_only(tensor.detach()) if is_quantised(tensor) else tensor)


def _replicated(names: tuple[str, ...], tensor: torch.Tensor) -> Shard:
    shape = tuple(int(size) for size in tensor.shape)
    return Shard(names=names, local=tensor, global_shape=shape, ranges=_whole(shape), logical=shape)


def _whole(shape: Sequence[int]) -> tuple[DimRanges, ...]:
    return tuple(((0, size),) if size else () for size in shape)


def _distributed(
    names: tuple[str, ...],
    local: torch.Tensor,
    shape: tuple[int, ...],
    mesh: MeshFacts,
    placements: tuple[Placement, ...],
) -> Shard:
    if any(item.kind == PARTIAL for item in placements):
        raise Unreadable(f"{names[0]}: {[item.text for item in placements]} is partial: no rank holds its values")
    if mesh.coordinate is None and mesh.ranks:
        empty: tuple[DimRanges, ...] = tuple(() for _ in shape)
        return Shard(names=names, local=local, global_shape=shape, ranges=empty, logical=tuple(local.shape))
    if mesh.coordinate is None:
        raise Unreadable(f"{names[0]}: a part of a tensor of shape {list(shape)}, and nothing says which part")
    layout = Layout(mesh_shape=mesh.shape, coordinate=mesh.coordinate, placements=placements, ranks=mesh.ranks)
    try:
        ranges = replay(shape, layout.mesh_shape, layout.coordinate, placements)
    except ValueError as error:
        raise Unreadable(f"{names[0]}: {error}") from error
    logical = shape_of(ranges)
    if tuple(local.shape) != logical:
        raise Unreadable(
            f"{names[0]}: its placements {[item.text for item in placements]} give the local shape {list(logical)}, "
            f"its storage has {list(local.shape)}"
        )
    return Shard(names=names, local=local, global_shape=shape, ranges=ranges, logical=logical, layout=layout)


def local_of(tensor: Any) -> torch.Tensor:
    """The local tensor of a distributed one, without copying or communicating."""
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, torch.Tensor):
        return local.detach()
    with torch.no_grad():
        found: torch.Tensor = tensor.to_local()
    return found.detach()


def localised(region: SymbolicTensor, ranges: Sequence[DimRanges]) -> SymbolicTensor:
    """The part of a symbolic global tensor that a shard with these ranges holds."""
    with torch._C.DisableTorchFunctionSubclass():
        shape = tuple(region.shape)
    for dim, held in enumerate(ranges):
        if held == ((0, shape[dim]),):
            continue
        parts = [region.narrow(dim, start, length) for start, length in held] or [region.narrow(dim, 0, 0)]
        region = torch.cat(parts, dim) if len(parts) > 1 else parts[0]  # type: ignore[assignment]
    return region


def shard_key(shard: Shard) -> str:
    """The same text on every rank that holds the same part of the same tensor."""
    return f"{shard.name}|{shard.global_shape}|{shard.ranges}|{shard.local.dtype}"


def is_empty(shard: Shard) -> bool:
    """Whether this rank holds nothing of the tensor."""
    return math.prod(shard.logical) == 0
