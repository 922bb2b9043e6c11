"""
What a tensor's values are made of: its memory, or the plain tensors inside a class of tensors of somebody else.

A quantised weight is codes and scales, a sparse one is its values. They are looked at in place of the whole, which
nobody computes: that would cost more than the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from ..introspect.attributes import read

_PLAIN = ("Tensor", "Parameter", "FlatParameter", "Buffer", "UninitializedBuffer")
_DEPTH = 4
_PARTITIONED = ("ds_id", "ds_tensor", "ds_shape")
_WIDER = {"uint16": "int32", "uint32": "int64"}


@frozen
class Parts:
    """
    The plain real tensors that hold a tensor's values. `whole` says that the first one is the tensor itself, element
    by element; else they are codes and scales. `missing` counts elements that are zero and stored nowhere.
    """

    tensors: tuple[Any, ...]
    whole: bool = True
    missing: int = 0


class UnreadError(Exception):
    """The values of a tensor are not looked at. The text says why."""


def parts_of(local: Any) -> Parts:
    """
    The parts of a tensor (of this rank's part of a distributed one). Nothing is copied but narrow and odd dtypes.

    Raises `UnreadError` for a tensor whose values cannot be looked at.
    """
    try:
        return _parts_of(local)
    except UnreadError:
        raise
    except Exception as error:  # tensors of other backends run their own code
        raise UnreadError(f"it cannot be read: {type(error).__name__}") from None


def _parts_of(local: Any) -> Parts:
    if not local.numel() and any(read(local, name) is not None for name in _PARTITIONED):
        raise UnreadError("its values lie in a partition of ZeRO-3, which is not read")
    if not _is_plain(local):
        return Parts(tuple(_inside(local)), whole=False)
    if local.is_quantized:
        return Parts(tuple(_quantised(local)), whole=False)
    if not _is_strided(local):
        return _sparse(local)
    if local.untyped_storage().nbytes() < local.numel() * local.element_size() and not _expanded(local):
        raise UnreadError("its storage was freed")
    return Parts((_readable(local.detach()),))


def _is_plain(local: Any) -> bool:
    return type(local).__name__ in _PLAIN and type(local).__module__.startswith("torch")


def _is_strided(local: Any) -> bool:
    import torch

    return bool(local.layout is torch.strided)


def _expanded(local: Any) -> bool:
    return local.untyped_storage().nbytes() > 0 and 0 in local.stride()


def _readable(plain: Any) -> Any:
    """The same numbers in a dtype that has extremes."""
    import torch

    if plain.dtype.is_complex:
        return torch.view_as_real(plain.resolve_conj())
    name = str(plain.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return plain.to(torch.bfloat16)  # which has every number of every float8
    if name in _WIDER:
        return plain.to(getattr(torch, _WIDER[name]))
    if name.startswith("float4") or not (plain.dtype.is_floating_point or name in _COUNTABLE):
        raise UnreadError(f"{plain.dtype} is not read")
    return plain


_COUNTABLE = ("bool", "uint8", "int8", "int16", "int32", "int64")


def _inside(local: Any) -> Iterator[Any]:
    """The plain tensors that a class of tensors is made of: as it says itself, else its memory and its attributes."""
    for tensor in _flattened(local, 0):
        yield from _parts_of(tensor).tensors


def _flattened(local: Any, depth: int) -> Iterator[Any]:
    import torch

    if depth > _DEPTH:
        raise UnreadError(f"a {type(local).__name__} is not read")
    if _is_plain(local):
        yield local
        return
    flatten = read(local, "__tensor_flatten__")
    if callable(flatten):
        names, _ = flatten()
        for name in names:
            yield from _flattened(getattr(local, name), depth + 1)
        return
    if type(local).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise UnreadError(f"a {type(local).__name__} is not read")
    parts = list(_attributes(local, depth + 1, set()))
    with torch._C.DisableTorchFunctionSubclass():
        memory = local.detach().as_subclass(torch.Tensor)
    # Beside scales the memory holds codes, whatever dtype it is kept in: its bits are no numbers of that dtype.
    yield memory.view(torch.uint8) if parts and memory.is_floating_point() and memory.is_contiguous() else memory
    yield from parts


def _attributes(holder: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """The tensors in the attributes of a tensor or of its quantisation state, modules left out."""
    import torch

    if depth > _DEPTH or id(holder) in seen:
        return
    seen.add(id(holder))
    own = read(holder, "__dict__")
    for value in own.values() if isinstance(own, Mapping) else ():
        if isinstance(value, torch.Tensor):
            yield from _flattened(value, depth)
        elif not isinstance(value, (torch.nn.Module, type)):
            yield from _attributes(value, depth + 1, seen)


def _quantised(local: Any) -> Iterator[Any]:
    import torch

    yield local.int_repr()
    if local.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        yield torch.tensor([local.q_scale()])
    else:
        yield local.q_per_channel_scales()


def _sparse(local: Any) -> Parts:
    import torch

    if local.layout is torch.sparse_coo:
        if not local.is_coalesced():
            raise UnreadError("it is a sparse tensor that is not coalesced")
        values = local.values()
    elif local.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        values = local.values()
    else:
        raise UnreadError(f"its memory layout {local.layout} is not read")
    return Parts((_readable(values.detach()),), missing=local.numel() - values.numel())
