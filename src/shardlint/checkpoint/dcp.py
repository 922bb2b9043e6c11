"""
Folders of torch.distributed.checkpoint: every tensor with its chunks and files, from `.metadata` and file sizes.

The metadata is read as inert data (`dcp_metadata`): nothing in it is executed. No data file is opened.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ..facts import EntryFacts, FileFacts, FileProblem
from ..facts.checkpoint import TORCH_DTYPES
from ..introspect.plain import encodable
from .chunks import Budget, Chunk, chunk_faults
from .dcp_metadata import (
    METADATA,
    ChunkPlace,
    DescribedTensor,
    Metadata,
    MetadataError,
    Undescribed,
    descriptions,
    read_metadata,
)
from .files import FileRefusedError, inside
from .safetensors_header import quoted

MAX_TOLD = 200  # problems of one folder; more of them say nothing new
_DEEPEST = 4  # segments of the name of a nested state dict
_LONGEST_PATH = 256
_MOST_PARTS = 64
_SIZES = {"float8": 1, "16": 2, "32": 4, "64": 8, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16}
_NAMES = {torch: stored for stored, torch in TORCH_DTYPES.items()}


@frozen(kw_only=True)
class DcpContents:
    """What a folder holds. `parts` are the dotted names of the state dicts that it nests, the largest first."""

    files: tuple[FileFacts, ...] = ()
    entries: tuple[EntryFacts, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    parts: tuple[str, ...] = ()


def read_dcp(folder: Path) -> DcpContents:
    """Read the folder. Whatever is wrong stands in the problems; nothing is raised for its contents."""
    try:
        described = read_metadata(folder)
    except MetadataError as error:
        return DcpContents(problems=(FileProblem(file=METADATA, kind=error.kind, detail=str(error)),))
    reader = _MetadataReader(folder=folder, places=described.places)
    reader.read(described)
    metadata = FileFacts(
        name=METADATA, size=described.size, kind="dcp", opened=True, tensors=len(reader.entries), counts=True
    )
    return DcpContents(
        files=(metadata, *reader.data_files()),
        entries=tuple(reader.entries),
        problems=tuple(reader.problems[:MAX_TOLD]),
        parts=_parts(described.planner_data, described.tensors),
    )


def _item_size(dtype: str) -> int:
    """Bytes of one element, 0 for a dtype that is not known here."""
    return next((size for ending, size in _SIZES.items() if dtype.startswith(ending) or dtype.endswith(ending)), 0)


@define(kw_only=True)
class _MetadataReader:
    folder: Path
    places: Mapping[tuple[str, tuple[int, ...] | None], ChunkPlace]
    entries: list[EntryFacts] = field(factory=list)
    problems: list[FileProblem] = field(factory=list)
    budget: Budget = field(factory=Budget)
    used: dict[str, list[tuple[int, int, str]]] = field(factory=dict)  # file: begin, end, key

    def read(self, metadata: Metadata) -> None:
        for (key, _), place in self.places.items():
            self.used.setdefault(place.file, []).append((place.begin, place.begin + place.length, key))
        for record in descriptions(metadata):
            if isinstance(record, DescribedTensor):
                self._tensor(record)
            elif isinstance(record, Undescribed):
                self._say("metadata-schema", record.reason, record.key)

    def _say(self, kind: str, detail: str, key: str | None = None, file: str = METADATA) -> None:
        self.problems.append(FileProblem(file=encodable(file), kind=kind, detail=detail, key=key))

    def _tensor(self, tensor: DescribedTensor) -> None:
        key, shape, dtype = tensor.key, tensor.shape, tensor.dtype
        for kind, detail in chunk_faults(shape, tensor.chunks, self.budget):
            self._say(kind, detail, key)
        file = self._stored(key, tensor.name, dtype, tensor.chunks)
        size = math.prod(shape) * _item_size(dtype)
        entry = EntryFacts(key=key, dtype=_NAMES.get(dtype, dtype), shape=shape, file=file, begin=0, end=size)
        self.entries.append(entry)

    def _stored(self, key: str, name: str, dtype: str, chunks: Iterable[Chunk]) -> str:
        """Look up where the chunks lie, and return the file of the first."""
        first = ""
        for chunk in chunks:
            elements = math.prod(chunk.sizes)
            if not elements:
                continue
            place = self.places.get((name, chunk.offsets))
            if place is None:
                self._say("chunk-unplaced", f"nothing says where its chunk at {list(chunk.offsets)} lies", key)
                continue
            first = first or encodable(place.file)
            needed = elements * _item_size(dtype)
            if place.plain and place.length < needed:
                detail = f"its chunk at {list(chunk.offsets)} needs {needed} bytes, {place.length} are stored"
                self._say("shape-size", detail, key)
        return first

    def data_files(self) -> Iterator[FileFacts]:
        """Look at each data file that the metadata names: its place and its size. None is opened."""
        for name, ranges in sorted(self.used.items()):
            ranges.sort()
            self._overlaps(name, ranges)
            end, key = max((range_[1], range_[2]) for range_ in ranges)
            try:
                size = inside(self.folder, name).stat().st_size
            except FileRefusedError as error:
                more = f" ({len(ranges)} stored objects lie there)" if error.kind == "missing" else ""
                self._say(error.kind, error.detail + more, file=name)
                continue
            except OSError as error:
                self._say("unreadable", error.strerror or str(error), file=name)
                continue
            if size < end:
                self._say("truncated", f"it has {size} bytes, {quoted(encodable(key))} ends at {end}", file=name)
            yield FileFacts(name=encodable(name), size=size, kind="dcp", counts=True)

    def _overlaps(self, name: str, ranges: list[tuple[int, int, str]]) -> None:
        last, holder = 0, ""
        for begin, end, key in ranges:
            if begin < last and end > begin:
                detail = f"its bytes from {begin} belong to {quoted(encodable(holder))} as well"
                self._say("overlap", detail, encodable(key), name)
                return
            if end > last:
                last, holder = end, key


def _is_path(path: tuple[Any, ...]) -> bool:
    """Whether this is a path of a state dict: short, of texts and of integers that can be written."""
    if len(path) > _LONGEST_PATH:
        return False
    return all(isinstance(part, str) or (isinstance(part, int) and abs(part) < 2**63) for part in path)


def _parts(planner_data: Any, tensors: Mapping[Any, Any]) -> tuple[str, ...]:
    """Name the nested state dicts: the paths by which their tensors were reached, without the last step."""
    counts: Counter[str] = Counter()
    paths = planner_data if isinstance(planner_data, dict) else {}
    for name in tensors:
        path = paths.get(name)
        if isinstance(path, tuple) and _is_path(path):
            counts.update(encodable(".".join(map(str, path[:end]))) for end in range(1, min(len(path), _DEEPEST + 1)))
    return tuple(name for name, _ in counts.most_common(_MOST_PARTS))
