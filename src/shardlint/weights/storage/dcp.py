"""
Folders of torch.distributed.checkpoint: every tensor with the pieces of files that hold it, nothing executed.

A piece is what `torch.save` wrote: a zip archive with the tensor's bytes, uncompressed, in `data/0`. So the bytes can
be read where they lie, in parts.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from ...checkpoint.chunks import Budget, Chunk, chunk_faults
from ...checkpoint.dcp_metadata import (
    METADATA,
    SHAPELESS,
    DescribedObject,
    DescribedTensor,
    Metadata,
    MetadataError,
    Undescribed,
    descriptions,
    ints_of,
    read_metadata,
)
from ...checkpoint.files import FileRefusedError, inside, opened
from ...checkpoint.inert_pickle import InertObject, Outside, read_stream
from ..symbolic.blocks import Block
from ..symbolic.radix import normalise
from .chunked_tensor import pieced
from .stored_tensors import ReadError, Stamp, TensorSource

MAX_DESCRIPTION = 1 << 20  # bytes
_STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


@frozen(kw_only=True)
class Folder:
    """The tensors of a folder by name, what is no tensor, and the tensors that cannot be read with the reason why."""

    tensors: Mapping[str, TensorSource]
    others: tuple[str, ...] = ()
    refused: Mapping[str, str]


def is_folder(path: Path) -> bool:
    """Whether the path is such a folder."""
    return (path / METADATA).is_file()


def read_folder(path: Path) -> Folder:
    """Describe the tensors of a folder. Raises `ReadError` for metadata that cannot be followed."""
    try:
        metadata = read_metadata(path)
    except MetadataError as error:
        raise ReadError(f"{path / METADATA}: {error}") from error
    return _ArchiveReader(path, metadata).run()


class _ArchiveReader:
    def __init__(self, path: Path, metadata: Metadata) -> None:
        self.path = path
        self.metadata = metadata
        self.budget = Budget()

    def run(self) -> Folder:
        tensors: dict[str, TensorSource] = {}
        refused: dict[str, str] = {}
        others: list[str] = []
        for record in descriptions(self.metadata):
            key = record.key
            if key is None:
                refused["a name that is no text"] = "nothing can be compared with it"
                continue
            if isinstance(record, DescribedObject):
                others.append(key)
                continue
            if key in tensors or key in refused:
                tensors.pop(key, None)
                refused[key] = "the folder has another tensor whose name is written alike"
                continue
            if isinstance(record, Undescribed):
                refused[key] = f"{record.reason}: {record.detail}"
                continue
            try:
                tensors[key] = self.tensor(record)
            except ReadError as error:
                refused[key] = str(error)
            except SHAPELESS as error:
                refused[key] = f"its description cannot be followed: {type(error).__name__}: {error}"
        return Folder(tensors=tensors, others=tuple(others), refused=refused)

    def tensor(self, record: DescribedTensor) -> TensorSource:
        key, name, shape, dtype = record.key, record.name, record.shape, _dtype(record.dtype)
        chunks = list(dict.fromkeys(record.chunks))
        for _, detail in chunk_faults(shape, chunks, self.budget):
            raise ReadError(f"{key}: {detail}")
        full = [chunk for chunk in chunks if math.prod(chunk.sizes)]
        parts = [self.part(f"{key}@{number}", name, chunk, dtype) for number, chunk in enumerate(full)]
        return pieced(key, shape, dtype, parts, self.path)

    def part(self, key: str, name: str, chunk: Chunk, dtype: torch.dtype) -> tuple[Block, TensorSource]:
        """The block of a chunk, and the piece that it reads."""
        place = self.metadata.places[name, chunk.offsets]
        if not place.plain:
            raise ReadError("stored through a transformation, such as compression, which is not read")
        piece = _piece(self.path, place.file, place.begin, place.length)
        if piece.sizes != chunk.sizes or piece.dtype != dtype:
            raise ReadError(
                f"the metadata says {list(chunk.sizes)} {dtype}, {piece.path} has {list(piece.sizes)} {piece.dtype}"
            )
        axes = tuple(normalise([digit]) for digit in zip(chunk.sizes, piece.strides, strict=True))
        source = TensorSource(
            key=key, shape=(piece.elements,), dtype=dtype, path=piece.path, begin=piece.begin, stamp=piece.stamp
        )
        return Block(chunk.offsets, axes, key, piece.offset), source


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError("a dtype that the installed torch does not have")
    return dtype


@frozen(kw_only=True)
class _Piece:
    path: Path
    begin: int
    stamp: Stamp
    elements: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def _piece(folder: Path, relative: str, offset: int, length: int) -> _Piece:
    """Where the bytes of one saved tensor lie. Raises `ReadError` when the archive is no plain one."""
    try:
        path = inside(folder, relative)
    except FileRefusedError as error:
        raise ReadError(f"{folder / relative}: {error.detail}") from error
    try:
        with (
            opened(path) as descriptor,
            io.FileIO(descriptor, closefd=False) as stream,
            zipfile.ZipFile(_Slice(stream, offset, length)) as archive,
        ):
            stamp = Stamp.of(os.fstat(descriptor))
            names = {name.partition("/")[2]: name for name in archive.namelist()}
            order = _member(archive, names["byteorder"], 16) if "byteorder" in names else b"little"
            described = read_stream(_member(archive, names["data.pkl"], MAX_DESCRIPTION))
            item = archive.getinfo(names["data/0"])
            stream.seek(offset + item.header_offset)
            header = stream.read(30)
    except Exception as error:  # zipfile raises what it likes for damage
        raise ReadError(f"{path}: at byte {offset}: no saved tensor: {type(error).__name__}: {error}") from error
    if item.compress_type != zipfile.ZIP_STORED or order != b"little" or len(header) < 30:
        raise ReadError(f"{path}: at byte {offset}: expected uncompressed, little-endian values")
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    begin = offset + item.header_offset + 30 + name_length + extra_length
    if header[:4] != b"PK\x03\x04" or begin + item.file_size > offset + length:
        raise ReadError(f"{path}: at byte {offset}: no saved tensor: its values do not lie where the archive says")
    return _described(path, described, begin, item.file_size, stamp)


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A member, decompressed no further than `limit` bytes, whatever the archive says of its size."""
    with archive.open(name) as member:
        data = member.read(limit + 1)
    if len(data) > limit:
        raise ReadError(f"{name} has more than {limit} bytes")
    return data


def _described(path: Path, described: Any, begin: int, nbytes: int, stamp: Stamp) -> _Piece:
    """The piece, from `_rebuild_tensor_v2(storage, offset, size, stride, ...)`, or v3, which says the dtype too."""
    if not (isinstance(described, InertObject) and described.called in ("_rebuild_tensor_v2", "_rebuild_tensor_v3")):
        raise ReadError(f"{path}: the saved object is no plain tensor")
    storage, offset, sizes, strides = described.arguments[:4]
    if not isinstance(storage, Outside):
        raise ReadError(f"{path}: the saved tensor has no storage")
    kind = storage.key[1].name
    dtype = _STORAGES.get(kind)
    if described.called == "_rebuild_tensor_v3":
        kind = described.arguments[6].name
        dtype = getattr(torch, kind, None)
    if not isinstance(dtype, torch.dtype) or dtype.is_complex:
        raise ReadError(f"{path}: storage of the kind {kind} is not read")
    elements = nbytes // dtype.itemsize
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if math.prod(sizes) and not 0 <= offset <= last < elements:
        raise ReadError(f"{path}: a tensor of {sizes} that reaches beyond its storage of {elements} elements")
    return _Piece(
        path=path,
        begin=begin,
        stamp=stamp,
        elements=elements,
        dtype=dtype,
        sizes=ints_of(sizes),
        strides=ints_of(strides),
        offset=offset,
    )


class _Slice(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, stream: Any, offset: int, length: int) -> None:
        self._stream, self._offset, self._length, self._at = stream, offset, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._length - self._at)
        count = left if size < 0 else min(size, left)
        self._stream.seek(self._offset + self._at)
        data: bytes = self._stream.read(count)
        self._at += len(data)
        return data
