"""Handlers of the operations that move whole dimensions: joining, cutting, permuting, reshaping, repeating."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import blocks as b
from .arithmetic import cast, viewed
from .radix import Untrackable, extent
from .tensor import SymbolicTensor, handles, like, need, unpacked, wrap_dim


@handles("contiguous", "clone", "detach", "detach_", "alias", "cpu", "cuda", "pin_memory", "__copy__")
def same(tensor: Any, *_: Any, **__: Any) -> SymbolicTensor:
    """What changes storage, device or graph but no element."""
    tensor = need(tensor)
    return like(tensor, tensor.blocks)


@handles("cat", "concat", "concatenate")
def cat(tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None, out: None = None) -> SymbolicTensor:
    """Join along one dimension; dtypes are promoted as torch does."""
    parts = [need(tensor) for tensor in tensors]
    parts = [part for part in parts if tuple(part.shape) != (0,)] or parts
    shape = list(parts[0].shape)
    dim = wrap_dim(dim if axis is None else axis, len(shape))
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = torch.promote_types(dtype, part.dtype)
    found: b.Blocks = []
    at = 0
    for part in (cast(part, dtype) for part in parts):
        other = list(part.shape)
        if other[:dim] != shape[:dim] or other[dim + 1 :] != shape[dim + 1 :]:
            raise RuntimeError(f"sizes must match except in dimension {dim}: {other} and {shape}")
        found.extend(b.shifted(part.blocks, dim, at))
        at += other[dim]
    shape[dim] = at
    return SymbolicTensor(b.guard(found), shape, dtype)


@handles("stack")
def stack(tensors: Sequence[Any], dim: int = 0, *, out: None = None) -> SymbolicTensor:
    """Join along a new dimension."""
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) != 1:
        raise RuntimeError(f"stack expects tensors of one shape, got {sorted(shapes)}")
    return cat([unsqueeze(tensor, dim) for tensor in tensors], dim)


@handles("narrow", "narrow_copy")
def narrow(tensor: SymbolicTensor, dim: int, start: int, length: int) -> SymbolicTensor:
    """A range of one dimension."""
    dim = wrap_dim(dim, tensor.dim())
    start, length = int(start), int(length)
    start += tensor.shape[dim] if start < 0 else 0
    if start < 0 or length < 0 or start + length > tensor.shape[dim]:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds the size {tensor.shape[dim]}")
    shape = list(tensor.shape)
    shape[dim] = length
    return like(tensor, b.narrow(tensor.blocks, dim, start, start + length), shape)


@handles("split", "split_with_sizes")
def split(tensor: SymbolicTensor, sizes: Any = None, dim: int = 0, **named: Any) -> tuple[SymbolicTensor, ...]:
    """Cut into parts of one size or of the given sizes."""
    sizes = next(value for value in (sizes, *named.values()) if value is not None)
    dim = wrap_dim(dim, tensor.dim())
    total = tensor.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - at) for at in range(0, max(total, 1), sizes)]
    if sum(sizes) != total:
        raise RuntimeError(f"split sizes {list(sizes)} do not sum to {total}")
    edges = [sum(sizes[:k]) for k in range(len(sizes))]
    return tuple(narrow(tensor, dim, at, size) for at, size in zip(edges, sizes, strict=True))


@handles("chunk")
def chunk(tensor: SymbolicTensor, chunks: int, dim: int = 0) -> tuple[SymbolicTensor, ...]:
    """Cut into at most `chunks` equal parts."""
    dim = wrap_dim(dim, tensor.dim())
    size = -(-tensor.shape[dim] // chunks)
    if size == 0:
        return tuple(narrow(tensor, dim, 0, 0) for _ in range(chunks))
    return split(tensor, size, dim)


@handles("tensor_split")
def tensor_split(tensor: SymbolicTensor, indices_or_sections: Any, dim: int = 0) -> tuple[SymbolicTensor, ...]:
    """Cut at indices, or into nearly equal parts."""
    dim = wrap_dim(dim, tensor.dim())
    total = tensor.shape[dim]
    if isinstance(indices_or_sections, int):
        parts = indices_or_sections
        cuts = [k * (total // parts) + min(k, total % parts) for k in range(1, parts)]
    else:
        cuts = [min(max(at if at >= 0 else at + total, 0), total) for at in indices_or_sections]
    edges = [0, *cuts, total]
    return tuple(narrow(tensor, dim, low, max(high - low, 0)) for low, high in itertools.pairwise(edges))


@handles("select")
def select(tensor: SymbolicTensor, dim: int, index: int) -> SymbolicTensor:
    """One index of one dimension, which goes away."""
    dim = wrap_dim(dim, tensor.dim())
    size, index = tensor.shape[dim], int(index)
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}")
    index %= size
    keep = [k for k in range(tensor.dim()) if k != dim]
    found = b.reordered(b.narrow(tensor.blocks, dim, index, index + 1), keep)
    return like(tensor, found, [tensor.shape[k] for k in keep])


@handles("unbind")
def unbind(tensor: SymbolicTensor, dim: int = 0) -> tuple[SymbolicTensor, ...]:
    """Every index of one dimension."""
    return tuple(select(tensor, dim, index) for index in range(tensor.shape[wrap_dim(dim, tensor.dim())]))


@handles("__iter__")
def iterate(tensor: SymbolicTensor) -> Iterator[SymbolicTensor]:
    """Every index of the first dimension."""
    return iter(unbind(tensor, 0))


@handles("unsqueeze")
def unsqueeze(tensor: Any, dim: int) -> SymbolicTensor:
    """A new dimension of size one."""
    tensor = need(tensor)
    dim = dim if dim >= 0 else dim + tensor.dim() + 1
    return like(tensor, b.inserted(tensor.blocks, dim), (*tensor.shape[:dim], 1, *tensor.shape[dim:]))


@handles("squeeze")
def squeeze(tensor: SymbolicTensor, dim: Any = None) -> SymbolicTensor:
    """Without its dimensions of size one, all or the given ones."""
    named = range(tensor.dim()) if dim is None else dim if isinstance(dim, (tuple, list)) else [dim]
    drop = {k for k in (wrap_dim(item, tensor.dim()) for item in named) if tensor.dim() and tensor.shape[k] == 1}
    keep = [k for k in range(tensor.dim()) if k not in drop]
    return like(tensor, b.reordered(tensor.blocks, keep), [tensor.shape[k] for k in keep])


@handles("permute")
def permute(tensor: SymbolicTensor, *dims: Any, **named: Any) -> SymbolicTensor:
    """The dimensions in another order."""
    order = [wrap_dim(dim, tensor.dim()) for dim in unpacked(dims or (named["dims"],))]
    if sorted(order) != list(range(tensor.dim())):
        raise RuntimeError(f"permute: {order} is no order of {tensor.dim()} dimensions")
    return like(tensor, b.reordered(tensor.blocks, order), [tensor.shape[dim] for dim in order])


@handles("transpose", "swapaxes", "swapdims")
def transpose(tensor: SymbolicTensor, first: int = 0, second: int = 1, **named: int) -> SymbolicTensor:
    """Two dimensions exchanged."""
    first = named.get("dim0", named.get("axis0", first))
    second = named.get("dim1", named.get("axis1", second))
    dims = list(range(tensor.dim()))
    one, two = wrap_dim(first, tensor.dim()), wrap_dim(second, tensor.dim())
    if dims:
        dims[one], dims[two] = dims[two], dims[one]
    return permute(tensor, dims)


@handles("t")
def matrix_transpose(tensor: SymbolicTensor) -> SymbolicTensor:
    """The transpose of a matrix; vectors stay."""
    if tensor.dim() > 2:
        raise RuntimeError("t() expects at most two dimensions")
    return permute(tensor, list(range(tensor.dim()))[::-1])


@handles("movedim", "moveaxis")
def movedim(tensor: SymbolicTensor, source: Any, destination: Any) -> SymbolicTensor:
    """Some dimensions moved to other places."""
    rank = tensor.dim()
    sources = [wrap_dim(dim, rank) for dim in (source if isinstance(source, (tuple, list)) else [source])]
    places = [wrap_dim(dim, rank) for dim in (destination if isinstance(destination, (tuple, list)) else [destination])]
    order = [dim for dim in range(rank) if dim not in sources]
    for place, dim in sorted(zip(places, sources, strict=True)):
        order.insert(place, dim)
    return permute(tensor, order)


@handles("flip")
def flip(tensor: SymbolicTensor, *dims: Any) -> SymbolicTensor:
    """Mirrored along some dimensions."""
    found = tensor.blocks
    for dim in {wrap_dim(dim, tensor.dim()) for dim in unpacked(dims)}:
        found = b.flipped(found, dim, tensor.shape[dim])
    return like(tensor, found)


@handles("reshape", "view", "_unsafe_view", "view_copy")
def reshape(tensor: SymbolicTensor, *shape: Any, **named: Any) -> SymbolicTensor:
    """Another shape in row-major order, or the same bits as another dtype of the same size."""
    values = shape or tuple(named.values())
    if len(values) == 1 and isinstance(values[0], torch.dtype):
        return viewed(tensor, values[0])
    sizes = [int(size) for size in unpacked(values)]
    total = math.prod(tensor.shape)
    if sizes.count(-1) == 1:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = total // known if known else -1
    if math.prod(sizes) != total or min(sizes, default=0) < 0:
        raise RuntimeError(f"shape {sizes} is invalid for {total} elements")
    if total == 0:
        return like(tensor, [], sizes)
    return like(tensor, b.reshape(tensor.blocks, tuple(tensor.shape), sizes), sizes)


@handles("view_as", "reshape_as")
def reshape_as(tensor: SymbolicTensor, other: torch.Tensor) -> SymbolicTensor:
    """The shape of another tensor."""
    return reshape(tensor, tuple(other.shape))


@handles("flatten", "ravel")
def flatten(tensor: SymbolicTensor, start_dim: int = 0, end_dim: int = -1) -> SymbolicTensor:
    """Some dimensions merged into one."""
    if tensor.dim() == 0:
        return unsqueeze(tensor, 0)
    start, end = wrap_dim(start_dim, tensor.dim()), wrap_dim(end_dim, tensor.dim())
    merged = math.prod(tensor.shape[start : end + 1])
    return reshape(tensor, (*tensor.shape[:start], merged, *tensor.shape[end + 1 :]))


@handles("unflatten")
def unflatten(tensor: SymbolicTensor, dim: int, sizes: Sequence[int]) -> SymbolicTensor:
    """One dimension split into several."""
    dim = wrap_dim(dim, tensor.dim())
    dims = list(sizes)
    if dims.count(-1) == 1:
        dims[dims.index(-1)] = tensor.shape[dim] // math.prod(size for size in dims if size != -1)
    if math.prod(dims) != tensor.shape[dim]:
        raise RuntimeError(f"unflatten: {dims} does not multiply to {tensor.shape[dim]}")
    return reshape(tensor, (*tensor.shape[:dim], *dims, *tensor.shape[dim + 1 :]))


@handles("expand", "expand_as", "broadcast_to")
def expand(tensor: SymbolicTensor, *shape: Any, **named: Any) -> SymbolicTensor:
    """Dimensions of size one repeated without storage."""
    values = shape or tuple(named.values())
    sizes = list(values[0].shape) if isinstance(values[0], torch.Tensor) else unpacked(values)
    while tensor.dim() < len(sizes):
        tensor = unsqueeze(tensor, 0)
    found = tensor.blocks
    for dim, size in enumerate(sizes):
        if size in (-1, tensor.shape[dim]):
            sizes[dim] = tensor.shape[dim]
            continue
        if tensor.shape[dim] != 1:
            raise RuntimeError(f"cannot expand dimension {dim} of size {tensor.shape[dim]} to {size}")
        radix = ((size, 0),) if size != 1 else ()
        found = [b.moved(block, dim, 0, radix) for block in found] if size else []
    return like(tensor, found, sizes)


@handles("pad")
def pad(tensor: SymbolicTensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> SymbolicTensor:
    """Constants put around."""
    if mode != "constant" or min(pad, default=0) < 0:
        raise Untrackable(f"pad(mode={mode!r}) with {list(pad)} is not an index rearrangement")
    for index, amount in enumerate(pad):
        if amount:
            dim = tensor.dim() - 1 - index // 2
            shape = list(tensor.shape)
            shape[dim] = amount
            fill = SymbolicTensor.constant(value or 0, shape, tensor.dtype)
            tensor = cat([tensor, fill] if index % 2 else [fill, tensor], dim)
    return same(tensor)


@handles("repeat", "tile")
def repeat(tensor: SymbolicTensor, *counts: Any) -> SymbolicTensor:
    """Copies side by side."""
    times = unpacked(counts)
    while tensor.dim() < len(times):
        tensor = unsqueeze(tensor, 0)
    for dim, count in enumerate(times, tensor.dim() - len(times)):
        if count == 0:
            tensor = narrow(tensor, dim, 0, 0)
        elif count != 1:
            tensor = cat([tensor] * count, dim)
    return tensor


@handles("repeat_interleave")
def repeat_interleave(tensor: SymbolicTensor, repeats: Any, dim: int | None = None, **_: Any) -> SymbolicTensor:
    """Every index of one dimension several times in a row."""
    if not isinstance(repeats, int) or dim is None:
        raise Untrackable("repeat_interleave() with a tensor of counts or without a dimension")
    dim = wrap_dim(dim, tensor.dim())
    wide = expand(unsqueeze(tensor, dim + 1), (*tensor.shape[: dim + 1], repeats, *tensor.shape[dim + 1 :]))
    return flatten(wide, dim, dim + 1)


@handles("roll")
def roll(tensor: SymbolicTensor, shifts: Any, dims: Any = None) -> SymbolicTensor:
    """Rotated along some dimensions."""
    if dims is None:
        return reshape(roll(flatten(tensor), shifts, 0), tuple(tensor.shape))
    moves = shifts if isinstance(shifts, (tuple, list)) else [shifts]
    where = dims if isinstance(dims, (tuple, list)) else [dims]
    for shift, dim in zip(moves, where, strict=True):
        size = tensor.shape[wrap_dim(dim, tensor.dim())]
        if size and shift % size:
            cut = size - shift % size
            tensor = cat([narrow(tensor, dim, cut, size - cut), narrow(tensor, dim, 0, cut)], dim)
    return same(tensor)


def covers_shape(tensor: SymbolicTensor) -> bool:
    """Whether the volumes of the blocks add up to that of the tensor; disjointness is an invariant of every handler."""
    volume = sum(math.prod(extent(radix) for radix in block.axes) for block in tensor.blocks)
    return volume == math.prod(tensor.shape)
