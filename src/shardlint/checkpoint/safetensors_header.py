"""Safetensors headers, read from untrusted bytes without safetensors and without torch."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from attrs import field, frozen

from ..facts import EMPTY, EntryFacts, FileProblem, FrozenDict

MAX_HEADER = 100_000_000  # bytes; the format's own limit
MAX_INTEGER = 2**63 - 1
PROBLEMS_PER_KIND = 20

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}

_NAMES = {name: name for name in DTYPE_BITS}
_MINUS_ZERO = re.compile(rb"[\[,:\s]-0")
_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?[0-9]+', re.DOTALL)  # strings too, so that what is in them is none
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}:]', re.DOTALL)


class _Info(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_Size = Annotated[int, msgspec.Meta(ge=0)]


class _QuickInfo(msgspec.Struct):
    """The same for a whole table at once; `__metadata__` becomes one without values."""

    dtype: str = ""
    shape: tuple[_Size, ...] = ()
    data_offsets: tuple[_Size, _Size] = (1, 0)


_RAW_TABLE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_QUICK_TABLE = msgspec.json.Decoder(dict[str, _QuickInfo])
_INFO = msgspec.json.Decoder(_Info)
_METADATA = msgspec.json.Decoder(dict[str, str])
_TEXT = msgspec.json.Decoder(str)


@frozen(kw_only=True)
class Header:
    """One file's header: its entries, its metadata, what is wrong with it, and where the data part begins (bytes)."""

    entries: tuple[EntryFacts, ...] = ()
    metadata: FrozenDict = EMPTY
    problems: tuple[FileProblem, ...] = ()
    data_start: int = 0
    read: bool = False


@frozen(kw_only=True)
class Problems:
    """Collects the problems of one file; of each kind the first few are kept and the rest counted."""

    file: str
    found: list[FileProblem] = field(factory=list)
    counts: dict[str, int] = field(factory=dict)

    def add(self, kind: str, detail: str, key: str | None = None) -> None:
        """Record one problem of `kind`."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] <= PROBLEMS_PER_KIND:
            self.found.append(FileProblem(file=self.file, kind=kind, detail=detail, key=key))

    def result(self) -> tuple[FileProblem, ...]:
        """Return what was kept, and for each kind that overflowed one entry that says how many more there are."""
        more = [
            FileProblem(file=self.file, kind=kind, detail=f"and {count - PROBLEMS_PER_KIND} more of this kind")
            for kind, count in self.counts.items()
            if count > PROBLEMS_PER_KIND
        ]
        return (*self.found, *more)


def quoted(text: str, limit: int = 120) -> str:
    """Return untrusted `text` in quotes, ASCII only, control characters escaped, cut after `limit` characters."""
    shown = ascii(text[:limit])
    return shown if len(text) <= limit else f"{shown} (cut, {len(text)} characters)"


def read_at(descriptor: int, count: int, offset: int) -> bytes:
    """Read up to `count` bytes at `offset`; fewer only when the file ends. Raises `OSError`."""
    parts: list[bytes] = []
    while count > 0:
        part = os.pread(descriptor, count, offset)
        if not part:
            break
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_header(descriptor: int, name: str) -> Header:
    """
    Read the header of the open regular file `descriptor`; `name` is what the facts call the file.

    Whatever the bytes are, the result is a `Header` with its problems. Raises `OSError` when reading fails.
    """
    problems = Problems(file=name)
    size = os.fstat(descriptor).st_size
    raw = _header_bytes(descriptor, size, problems)
    if raw is None:
        return Header(problems=problems.result())
    start = 8 + len(raw)
    table = _decode_table(raw, problems)
    if table is None:
        return Header(problems=problems.result(), data_start=start)
    if _MINUS_ZERO.search(raw) and any(match.group() == b"-0" for match in _NUMBER.finditer(raw)):
        problems.add("header-json", "a size or offset is -0, which is no integer for the readers of this format")
    raw_metadata = table.pop("__metadata__", None)
    metadata = _decode_metadata(raw_metadata, problems)
    entries = _quick_entries(raw, name) if raw_metadata is None or metadata else None
    if entries is None or len(entries) != len(table):
        entries = _entries(table, name, problems)
    if _may_hold_duplicates(raw, len(table), raw_metadata, metadata):
        for key in _duplicate_keys(raw):
            problems.add("duplicate-key", f"{quoted(key)} stands twice in one JSON object", key)
    _check_layout(entries, size - start, problems)
    return Header(
        entries=entries,
        metadata=metadata,
        problems=problems.result(),
        data_start=start,
        read=True,
    )


def _header_bytes(descriptor: int, size: int, problems: Problems) -> bytes | None:
    if size == 0:
        problems.add("empty", "the file has no bytes")
        return None
    if size < 8:
        problems.add("truncated", f"the file has {size} bytes, too few for the header's length")
        return None
    length = int.from_bytes(read_at(descriptor, 8, 0), "little")
    if length > MAX_HEADER:
        detail = f"the first 8 bytes say {length} bytes of header, the format allows {MAX_HEADER}"
        problems.add("header-too-large" if length <= size - 8 else "header-length", detail)
        return None
    if length > size - 8:
        cut = read_at(descriptor, 2, 8) in (b'{"', b"{ ")
        detail = f"the first 8 bytes say {length} bytes of header, {size - 8} bytes follow"
        problems.add("truncated" if cut else "header-length", detail)
        return None
    raw = read_at(descriptor, length, 8)
    if len(raw) != length:
        problems.add("changed", f"{length} bytes of header were there, {len(raw)} could be read")
        return None
    if raw[:1] != b"{":
        problems.add("header-length" if length < 2 else "header-json", "the header does not begin with '{'")
        return None
    return raw


def _decode_table(raw: bytes, problems: Problems) -> dict[str, msgspec.Raw] | None:
    try:
        raw.decode("utf-8")
        return _RAW_TABLE.decode(raw)
    except UnicodeDecodeError as error:
        problems.add("header-json", f"it is not UTF-8: {error.reason} at byte {error.start}")
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        problems.add("header-json", str(error))
    return None


def _decode_metadata(raw: msgspec.Raw | None, problems: Problems) -> FrozenDict:
    if raw is None:
        return EMPTY
    try:
        return FrozenDict(_METADATA.decode(raw))
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        problems.add("header-schema", f"__metadata__ is not a mapping of strings to strings: {error}", "__metadata__")
        return EMPTY


def _quick_entries(raw: bytes, name: str) -> tuple[EntryFacts, ...] | None:
    """Return the entries of a header without any fault, None when there may be one."""
    try:
        table = _QUICK_TABLE.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    table.pop("__metadata__", None)
    bits_of, names, product = DTYPE_BITS.get, _NAMES, math.prod
    entries = []
    for key, info in table.items():
        begin, end = info.data_offsets
        dtype, shape = info.dtype, info.shape
        size = (end - begin) * 8
        if size <= 0 or end > MAX_INTEGER or product(shape) * bits_of(dtype, 0) != size:
            return None
        entries.append(EntryFacts(key=key, dtype=names[dtype], shape=shape, file=name, begin=begin, end=end))
    return tuple(entries)


def _entries(table: dict[str, msgspec.Raw], name: str, problems: Problems) -> tuple[EntryFacts, ...]:
    decode = _INFO.decode
    entries: list[EntryFacts] = []
    for key, raw in table.items():
        try:
            info = decode(raw)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            problems.add("header-schema", f"{quoted(key)}: {error}", key)
            continue
        begin, end = info.data_offsets
        fault = _fault(info, begin, end)
        if fault:
            problems.add(fault[0], f"{quoted(key)}: {fault[1]}", key)
            if fault[2]:
                continue
        dtype = _NAMES.get(info.dtype, info.dtype)
        entries.append(EntryFacts(key=key, dtype=dtype, shape=info.shape, file=name, begin=begin, end=end))
    return tuple(entries)


def _fault(info: _Info, begin: int, end: int) -> tuple[str, str, bool] | None:
    """Return kind, detail and whether the entry is unusable."""
    if not 0 <= begin <= end <= MAX_INTEGER:
        return "offsets", f"data_offsets {_number(begin)}..{_number(end)} are not a range of bytes", True
    elements = _elements(info.shape)
    if elements is None:
        return "shape-size", f"the {len(info.shape)} sizes of its shape are negative or overflow 64 bits", True
    bits = DTYPE_BITS.get(info.dtype)
    if bits is None:
        return "unknown-dtype", f"dtype {quoted(info.dtype, 40)} is none that the format knows", False
    if elements * bits != (end - begin) * 8:
        shape = "x".join(map(str, info.shape[:8])) or "scalar"
        detail = f"{info.dtype} {shape} needs {elements * bits / 8:g} bytes, data_offsets give {end - begin}"
        return "shape-size", detail, False
    return None


def _number(value: int) -> str:
    return str(value) if abs(value) < 2**128 else "(huge)"


def _elements(shape: tuple[int, ...]) -> int | None:
    """Return the product of the sizes, None when one is negative or a partial product does not fit 64 bits."""
    if len(shape) <= 4:
        product = math.prod(shape)
        if 0 < product <= MAX_INTEGER and min(shape, default=1) > 0:
            return product
    product = 1
    for size in shape:
        if size < 0 or size > MAX_INTEGER:
            return None
        product *= size
        if product > MAX_INTEGER:
            return None
    return product


def _check_layout(entries: tuple[EntryFacts, ...], data_size: int, problems: Problems) -> None:
    """Tensors must follow one another without a gap, from the first byte of the data part to the last."""
    last, last_key = 0, ""
    for entry in entries:  # nearly every file lists its tensors in the order of their bytes
        if entry.begin != last:
            break
        last = entry.end
    else:
        if last == data_size:
            return
    last = 0
    for begin, end, key in sorted([(entry.begin, entry.end, entry.key) for entry in entries]):
        if begin < last:
            problems.add("overlap", f"{quoted(key)} begins {last - begin} bytes before {quoted(last_key)} ends", key)
        elif begin > last:
            problems.add("hole", f"{begin - last} bytes before {quoted(key)} belong to no tensor", key)
        if end >= last:
            last, last_key = end, key
    if last > data_size:
        detail = f"the tensors need {last} bytes of data, the file has {data_size} ({quoted(last_key)} is cut)"
        problems.add("truncated", detail, last_key)
    elif last < data_size and "header-schema" not in problems.counts and "offsets" not in problems.counts:
        problems.add("trailing-bytes", f"{data_size - last} bytes after the last tensor belong to no tensor")


def _may_hold_duplicates(raw: bytes, entries: int, raw_metadata: msgspec.Raw | None, metadata: FrozenDict) -> bool:
    """
    Whether some JSON object of the header may hold a key twice.

    Without escapes every field name is spelled literally, so as many names as entries prove that none was dropped.
    """
    colons = 4 * entries + (0 if raw_metadata is None else 1 + bytes(raw_metadata).count(b":"))
    if raw.count(b":") != colons:  # of an entry that another one replaced, whatever was in it
        return True
    if b"\\" in raw or any(raw.count(name) != entries for name in (b'"data_offsets"', b'"dtype"', b'"shape"')):
        return True
    if raw_metadata is None:
        return False
    return raw.count(b'"__metadata__"') != 1 or bytes(raw_metadata).count(b'"') != 4 * len(metadata)


def _duplicate_keys(raw: bytes) -> Iterator[str]:
    """Yield every key that stands twice in one object; memory is that of one object's keys."""
    seen: list[set[bytes]] = []
    last = b""
    for match in _TOKEN.finditer(raw):
        token = match.group()
        if token == b"{":
            seen.append(set())
        elif token == b"}":
            seen.pop()
        elif token == b":":
            key = _unescaped(last)
            if key in seen[-1]:
                yield key.decode("utf-8", "replace")
            seen[-1].add(key)
        else:
            last = token


def _unescaped(token: bytes) -> bytes:
    if b"\\" in token:
        try:
            return _TEXT.decode(token).encode()
        except (msgspec.DecodeError, ValueError):
            return token
    return token[1:-1]
