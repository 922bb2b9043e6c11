"""Stored tensors: where each one lies on disk, and bounded reads of parts of them."""

from __future__ import annotations

import os
import stat
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch
from attrs import frozen

from ...checkpoint.files import FileRefusedError, opened
from ...checkpoint.safetensors_header import read_at
from ...facts import CheckpointFacts, EntryFacts
from ...loading.planner import loaded_shape
from ..compare.bits import torch_dtype

_CHANGED = "it changed while it was compared, so that nothing is known of what lies there now"
_SIX_BITS = ("F6_E2M3", "F6_E3M2")


class ReadError(OSError):
    """A file that is shorter than its header says, or that cannot be read. The text names file and position."""


@frozen
class Stamp:
    """The state of a file: another one under its name, or other bytes in it, give another stamp."""

    device: int
    inode: int
    size: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """The stamp of a file from what `stat` says."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@frozen(kw_only=True)
class TensorSource:
    """
    One stored tensor: contiguous, row-major, `begin` bytes into the file.

    `opaque` is the format's name of a dtype that torch has not: the elements are then the bytes of its rows. `stamp`
    tells the state of the file that `begin` was read from.
    """

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    path: Path
    begin: int
    opaque: str = ""
    stamp: Stamp | None = None

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
    starts: dict[str, tuple[int, Stamp]] = {}
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


def _source(entry: EntryFacts, folder: Path, place: tuple[int, Stamp], opaque: bool) -> TensorSource | str:
    start, stamp = place
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
            stamp=stamp,
        )
    if dtype is None:
        return f"the installed torch has no dtype for {entry.dtype}"
    if dtype.is_complex:
        return f"complex dtypes ({entry.dtype}) are not compared"
    if entry.dtype == "F4" and (not entry.shape or entry.shape[-1] % 2):
        return f"F4 with an odd last dimension, shape {list(entry.shape)}"
    return TensorSource(
        key=entry.key,
        shape=loaded_shape(entry),
        dtype=dtype,
        path=folder / entry.file,
        begin=start + entry.begin,
        stamp=stamp,
    )


def data_start(path: Path) -> tuple[int, Stamp]:
    """The position of the first tensor byte of a safetensors file, and the file's stamp. Raises `ReadError`."""
    try:
        with opened(Path(os.path.realpath(path))) as descriptor:
            stamp = Stamp.of(os.fstat(descriptor))
            head = read_at(descriptor, 8, 0)
    except FileRefusedError as error:
        raise ReadError(f"{path}: cannot be opened: {error.detail}") from error
    if len(head) < 8:
        raise ReadError(f"{path}: shorter than the 8 bytes of a safetensors length")
    return 8 + int(struct.unpack("<Q", head)[0]), stamp


class Files:
    """
    Open files, each opened once; reads are positioned, so threads share them. A context manager that closes them.

    At the end of the block it raises `ReadError` when a file changed since its tensors were looked up: what was read is
    then not what lies on the disk.
    """

    def __init__(self) -> None:
        self._open: dict[Path, tuple[int, Stamp]] = {}
        self._lock = threading.Lock()

    def read_into(self, source: TensorSource, buffer: memoryview, start: int) -> None:
        """Fill `buffer` from byte `start` of the tensor. Raises `ReadError` on a short file."""
        position = source.begin + start
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor(source), [buffer[done:] if done else buffer], position + done)
            if count <= 0:
                raise ReadError(
                    f"{source.path}: ends at byte {position + done}, {source.key} needs {len(buffer) - done} bytes more"
                )
            done += count

    def _descriptor(self, source: TensorSource) -> int:
        known = self._open.get(source.path)
        if known is not None:
            return known[0]
        with self._lock:
            if source.path not in self._open:
                self._open[source.path] = self._opened(source)
            return self._open[source.path][0]

    def _opened(self, source: TensorSource) -> tuple[int, Stamp]:
        path = source.path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would hang
        except OSError as error:
            raise ReadError(f"{path}: cannot be opened: {error.strerror or error}") from error
        status = os.fstat(descriptor)
        now = Stamp.of(status)
        if stat.S_ISREG(status.st_mode) and source.stamp in (None, now):
            return descriptor, now
        os.close(descriptor)
        raise ReadError(f"{path}: {_CHANGED}" if stat.S_ISREG(status.st_mode) else f"{path}: not a regular file")

    def check(self) -> None:
        """Raise `ReadError` when a file is not as it was when it was opened, or another one bears its name."""
        for path, (descriptor, before) in self._open.items():
            try:
                same = before == Stamp.of(os.fstat(descriptor)) == Stamp.of(path.stat())
            except OSError:
                same = False
            if not same:
                raise ReadError(f"{path}: {_CHANGED}")

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for descriptor, _ in self._open.values():
                os.close(descriptor)
            self._open.clear()

    def __enter__(self) -> Files:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.close()
