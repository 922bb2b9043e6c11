"""Stored tensors: where each one lies on disk, and bounded reads of parts of them."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch
from attrs import frozen

from ...facts import CheckpointFacts, EntryFacts
from ...loading.planner import loaded_shape
from ..compare.bits import torch_dtype

_SIX_BITS = ("F6_E2M3", "F6_E3M2")


class ReadError(OSError):
    """A file that is shorter than its header says, or that cannot be read. The text names file and position."""


@frozen(kw_only=True)
class TensorSource:
    """
    One stored tensor: contiguous, row-major, `begin` bytes into the file.

    `opaque` is the format's name of a dtype that torch has not: the elements are then the bytes of its rows.
    """

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    path: Path
    begin: int
    opaque: str = ""

    @property
    def volume(self) -> int:
        """The number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.volume * self.dtype.itemsize

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files that hold it."""
        return (self.path.name,)

    def read_into(self, files: Files, buffer: memoryview, start: int) -> None:
        """Fill `buffer` from byte `start` of the tensor, whole elements. Raises `ReadError` on a short file."""
        files.read_into(self, buffer, start)


@frozen(kw_only=True)
class SourceSet:
    """The stored tensors by key, and those that cannot be compared with the reason why."""

    tensors: Mapping[str, TensorSource]
    refused: Mapping[str, str]


def sources_of(checkpoint: CheckpointFacts, *, opaque: bool = False) -> SourceSet:
    """
    Find every stored tensor of a checkpoint from its headers. `opaque` gives what torch has no dtype for as bytes.

    Raises `ReadError` when a file that a header entry names cannot be opened.
    """
    folder = Path(checkpoint.path)
    folder = folder if folder.is_dir() else folder.parent
    starts: dict[str, int] = {}
    tensors: dict[str, TensorSource] = {}
    refused: dict[str, str] = {}
    for key, entry in checkpoint.entry_by_key().items():
        if entry.file not in starts:
            starts[entry.file] = data_start(folder / entry.file)
        found = _source(entry, folder, starts[entry.file], opaque)
        if isinstance(found, str):
            refused[key] = found
        else:
            tensors[key] = found
    return SourceSet(tensors=tensors, refused=refused)


def _source(entry: EntryFacts, folder: Path, start: int, opaque: bool) -> TensorSource | str:
    dtype = torch_dtype(entry.dtype)
    if dtype is None and opaque and entry.dtype in _SIX_BITS and entry.shape and entry.shape[-1] % 4 == 0:
        shape = (*entry.shape[:-1], entry.shape[-1] // 4 * 3)
        return TensorSource(
            key=entry.key,
            shape=shape,
            dtype=torch.uint8,
            path=folder / entry.file,
            begin=start + entry.begin,
            opaque=entry.dtype,
        )
    if dtype is None:
        return f"the installed torch has no dtype for {entry.dtype}"
    if dtype.is_complex:
        return f"complex dtypes ({entry.dtype}) are not compared"
    if entry.dtype == "F4" and (not entry.shape or entry.shape[-1] % 2):
        return f"F4 with an odd last dimension, shape {list(entry.shape)}"
    return TensorSource(
        key=entry.key, shape=loaded_shape(entry), dtype=dtype, path=folder / entry.file, begin=start + entry.begin
    )


def data_start(path: Path) -> int:
    """The position of the first tensor byte of a safetensors file. Raises `ReadError`."""
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
    except OSError as error:
        raise ReadError(f"{path}: cannot be opened: {error.strerror or error}") from error
    if len(head) < 8:
        raise ReadError(f"{path}: shorter than the 8 bytes of a safetensors length")
    return 8 + int(struct.unpack("<Q", head)[0])


class Files:
    """Open files, each opened once; reads are positioned, so threads share them. A context manager that closes them."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}
        self._lock = threading.Lock()

    def read_into(self, source: TensorSource, buffer: memoryview, start: int) -> None:
        """Fill `buffer` from byte `start` of the tensor. Raises `ReadError` on a short file."""
        position = source.begin + start
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor(source.path), [buffer[done:] if done else buffer], position + done)
            if count <= 0:
                raise ReadError(
                    f"{source.path}: ends at byte {position + done}, {source.key} needs {len(buffer) - done} bytes more"
                )
            done += count

    def _descriptor(self, path: Path) -> int:
        found = self._open.get(path)
        if found is not None:
            return found
        with self._lock:
            if path not in self._open:
                try:
                    self._open[path] = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                except OSError as error:
                    raise ReadError(f"{path}: cannot be opened: {error.strerror or error}") from error
            return self._open[path]

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()

    def __enter__(self) -> Files:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
