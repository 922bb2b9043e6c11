"""
The `.metadata` of torch.distributed.checkpoint as inert data: what is stored, and where each part of it lies.

It is a serialised Python object. It is read as `inert_pickle` reads it: nothing in it is executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from ..introspect.plain import encodable
from .chunks import Chunk
from .files import FileRefusedError, read_small
from .inert_pickle import InertObject, Name, StreamError, read_stream

METADATA = ".metadata"
MAX_METADATA = 256 * 2**20  # bytes
MAX_DIMS = 64  # dimensions, more than torch allows
MAX_CHUNKS = 4_000_000
SHAPELESS = (AttributeError, KeyError, TypeError, IndexError, ValueError, OverflowError)
"""What reading a record raises that is not what it should be."""


class MetadataError(Exception):
    """A `.metadata` that is refused. `kind` is one of the kinds of `FileProblem`, the text says what is wrong."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@frozen(kw_only=True)
class ChunkPlace:
    """Where the bytes of one chunk lie. `plain` unless they went through a transformation, such as compression."""

    file: str
    begin: int
    length: int
    plain: bool


@frozen(kw_only=True)
class Metadata:
    """
    What a folder holds. `tensors` are the records of tensors and objects by name, still to be looked at.

    `places` are the places by name and offset of the chunk, None for an object; `size` is that of the file, in bytes.
    """

    tensors: Mapping[Any, Any]
    places: Mapping[tuple[str, tuple[int, ...] | None], ChunkPlace]
    planner_data: Any
    size: int


@frozen(kw_only=True)
class DescribedTensor:
    """
    One record of the metadata. `name` is as stored, `key` the same text in a form that can be encoded.

    `shape` is in elements, `dtype` torch's name of it, `chunks` the boxes that make up the tensor, which may be wrong
    as a whole (`chunks.chunk_faults`).
    """

    key: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[Chunk, ...]


@frozen(kw_only=True)
class DescribedObject:
    """A record that is no tensor: a step count, the settings of an optimizer."""

    key: str


@frozen(kw_only=True)
class Undescribed:
    """A record that cannot be followed. `key` is None when its name is no text; `reason` is one clause."""

    key: str | None
    reason: str
    detail: str = ""


def descriptions(metadata: Metadata) -> Iterator[DescribedTensor | DescribedObject | Undescribed]:
    """What each record of the metadata describes, in its order; after `MAX_CHUNKS` chunks nothing is followed."""
    left = MAX_CHUNKS
    for name, value in metadata.tensors.items():
        if not isinstance(name, str):
            yield Undescribed(key=None, reason="a tensor has a name that is no text")
            continue
        key = encodable(name)
        if _is_object(value):
            yield DescribedObject(key=key)
            continue
        try:
            state = _tensor_state(value)
            left -= len(state["chunks"])
            if left < 0:
                raise OverflowError("more chunks than any folder has")
            yield DescribedTensor(
                key=key,
                name=name,
                shape=ints_of(state["size"]),
                dtype=_dtype_of(state["properties"]),
                chunks=tuple(map(_chunk_of, state["chunks"])),
            )
        except SHAPELESS as error:
            reason = f"its description cannot be followed: {type(error).__name__}"
            yield Undescribed(key=key, reason=reason, detail=encodable(str(error))[:200])


def read_metadata(folder: Path) -> Metadata:
    """Read the metadata of a folder. Raises `MetadataError`."""
    try:
        raw = read_small(folder, METADATA, MAX_METADATA)
        root = read_stream(raw)
    except FileRefusedError as error:
        raise MetadataError(error.kind, error.detail) from error
    except StreamError as error:
        raise MetadataError("metadata-stream", encodable(str(error))) from error
    try:
        state = state_of(root)
        tensors, storage = state["state_dict_metadata"], state["storage_data"]
        places = {_index(key): _place(value) for key, value in storage.items()}
        return Metadata(
            tensors=dict(tensors.items()), places=places, planner_data=state.get("planner_data"), size=len(raw)
        )
    except SHAPELESS as error:
        detail = f"expected the metadata of a checkpoint, got something else ({type(error).__name__}: {error})"
        raise MetadataError("metadata-schema", encodable(detail)[:300]) from error


def _tensor_state(value: Any) -> dict[Any, Any]:
    if not isinstance(value, InertObject) or value.called != "TensorStorageMetadata":
        raise TypeError("neither a tensor nor an object")
    return state_of(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, InertObject) and value.called == "BytesStorageMetadata"


def state_of(value: Any) -> dict[Any, Any]:
    """The fields of a record. Raises one of `SHAPELESS`."""
    if not isinstance(value, InertObject) or not isinstance(value.state, dict):
        raise TypeError("a record without fields")
    return value.state


def ints_of(value: Any) -> tuple[int, ...]:
    """A `torch.Size` as integers that a tensor can have. Raises one of `SHAPELESS`."""
    if isinstance(value, InertObject):
        value = value.arguments[0]
    if not isinstance(value, (tuple, list)) or len(value) > MAX_DIMS:  # before it is copied: many may share it
        raise ValueError("sizes that no tensor has")
    numbers = tuple(value)
    if not all(isinstance(number, int) and 0 <= number < 2**63 for number in numbers):
        raise ValueError("sizes that no tensor has")
    return numbers


def _chunk_of(value: Any) -> Chunk:
    state = state_of(value)
    return Chunk(ints_of(state["offsets"]), ints_of(state["sizes"]))


def _dtype_of(properties: Any) -> str:
    state = properties.state
    dtype = state[0] if isinstance(state, tuple) else state["dtype"]
    if not isinstance(dtype, Name) or dtype.module != "torch":
        raise TypeError("no dtype")
    return encodable(dtype.name)


def _index(key: Any) -> tuple[str, tuple[int, ...] | None]:
    state = state_of(key)
    offset = state.get("offset")
    return _text(state["fqn"]), None if offset is None else ints_of(offset)


def _text(value: Any) -> str:
    """The text itself; of anything else `str` may never end, since records can hold each other many times."""
    if not isinstance(value, str):
        raise TypeError("a name that is not a string")
    return value


def _place(value: Any) -> ChunkPlace:
    state = state_of(value)
    begin, length = ints_of((state["offset"], state["length"]))
    return ChunkPlace(
        file=_text(state["relative_path"]), begin=begin, length=length, plain=not state.get("transform_descriptors")
    )
