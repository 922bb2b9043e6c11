"""The live side: bit patterns of tiles of a tensor, wherever its storage is. Nothing is written to it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import numpy as np
import torch

from .bits import INTEGERS, UNSIGNED, Bits, bits_of
from .tiles import TILE_BYTES, Tile


class Unreadable(ValueError):  # noqa: N818 - a refusal that names tensor and reason
    """A live tensor that cannot be compared: the text says which and why."""


def check_readable(name: str, local: torch.Tensor) -> None:
    """Raises `Unreadable` for meta, sparse, quantised and complex tensors, and for storage that is too small."""
    kind = "complex" if local.is_complex() else "quantized" if local.is_quantized else ""
    kind = "meta" if local.is_meta else kind or ("" if local.layout == torch.strided else str(local.layout))
    if kind:
        raise Unreadable(f"{name}: expected dense real values in storage, found a {kind} tensor")
    if local.numel() == 0:
        return
    last = local.storage_offset() + sum((n - 1) * s for n, s in zip(local.shape, local.stride(), strict=True))
    held = local.untyped_storage().nbytes()
    if (last + 1) * local.element_size() > held:
        raise Unreadable(
            f"{name}: shape {list(local.shape)} needs {(last + 1) * local.element_size()} bytes, its storage has {held}"
        )


def _storage_of(local: torch.Tensor) -> Bits:
    """
    The storage of a CPU tensor in place, as an array of whole elements.

    Not by way of `Tensor.numpy`: what that has seen can never be resized again, and FSDP frees gathered parameters by
    resizing. The array is valid as long as the tensor lives.
    """
    storage, item = local.untyped_storage(), local.element_size()
    count = storage.nbytes() // item
    if not count:
        return np.empty(0, UNSIGNED[item])
    memory = (ctypes.c_ubyte * (count * item)).from_address(storage.data_ptr())
    return np.asarray(memory).view(UNSIGNED[item])


class LiveBytes:
    """
    One local tensor under its name. Host memory is read in place, device memory tile by tile through a small buffer.

    `staged` forces the way through the buffer. `origin` is the index of the first element within the tensor that
    differences are told of. Raises `Unreadable`.
    """

    def __init__(
        self, name: str, local: torch.Tensor, *, staged: bool = False, origin: Sequence[int] | None = None
    ) -> None:
        check_readable(name, local)
        self.name = name
        self.dtype = local.dtype
        self.shape: tuple[int, ...] = tuple(local.shape)
        self.strides: tuple[int, ...] = tuple(local.stride())
        self.origin = tuple(origin or (0,) * local.dim())
        self.base = int(local.storage_offset())
        self.item = local.element_size()
        self.repeats = any(not stride and size > 1 for size, stride in zip(self.shape, self.strides, strict=True))
        self.in_host_memory = local.device.type == "cpu" and not staged
        integers = local.detach().view(INTEGERS[self.item])
        self._local = integers
        if self.in_host_memory:
            self._flat: Bits = _storage_of(local)
            self._address = int(self._flat.ctypes.data)

    def address(self, offset: int) -> int:
        """The address of an element of host storage."""
        return self._address + offset * self.item

    def patterns(self, tile: Tile) -> Bits:
        """The bit patterns of a tile, shaped like its nest. Valid until the thread's next call."""
        if not self.in_host_memory:
            return self._staged(tile)
        if tile.is_plain:
            run = self._flat[tile.live : tile.live + tile.volume]
            return run if tile.digits else run.reshape(())
        shape = [size for size, _, _ in tile.digits]
        strides = [live * self.item for _, live, _ in tile.digits]
        return np.ndarray(shape, self._flat.dtype, self._flat, tile.live * self.item, strides)

    def _staged(self, tile: Tile) -> Bits:
        shape = [size for size, _, _ in tile.digits]
        view = torch.as_strided(self._local, shape, [live for _, live, _ in tile.digits], tile.live)
        buffer = _stage(self._local.device)[: tile.volume * self.item].view(self._local.dtype).view(shape)
        buffer.copy_(view)
        return bits_of(buffer)

    def index_of(self, offset: int) -> tuple[int, ...]:
        """The index, within the local tensor, of the element at a storage offset."""
        return self.shifted(index_from_strides(offset - self.base, self.shape, self.strides))

    def shifted(self, index: Sequence[int]) -> tuple[int, ...]:
        """An index within the local tensor as differences tell it."""
        return tuple(at + low for at, low in zip(index, self.origin, strict=True))


def index_from_strides(offset: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The index that leads to an offset, for strides that do not overlap."""
    index = [0] * len(shape)
    for dim in sorted(range(len(shape)), key=lambda d: (-strides[d], shape[d] == 1)):
        if strides[dim] and shape[dim] > 1:
            index[dim], offset = divmod(offset, strides[dim])
    return tuple(index)


_LOCAL = threading.local()


def _stage(device: torch.device) -> torch.Tensor:
    """This thread's staging buffer, pinned when the device is an accelerator."""
    buffer: torch.Tensor | None = getattr(_LOCAL, "buffer", None)
    if buffer is None:
        buffer = torch.empty(TILE_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
        _LOCAL.buffer = buffer
    return buffer
