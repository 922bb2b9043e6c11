"""Builders of small checkpoint folders, good and bad, from plain dicts. No torch."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

BITS = {"F32": 32, "BF16": 16, "F16": 16, "I64": 64, "U8": 8, "F8_E4M3": 8, "I8": 8, "I32": 32, "F8_E8M0": 8}


def entry(dtype: str, shape: list[int], begin: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + math.prod(shape) * BITS[dtype] // 8]}


def header(tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None = None) -> tuple[bytes, int]:
    """The JSON bytes of a right header, and the size of its data part."""
    table: dict[str, Any] = {"__metadata__": metadata} if metadata is not None else {}
    position = 0
    for key, (dtype, shape) in tensors.items():
        table[key] = entry(dtype, shape, position)
        position = table[key]["data_offsets"][1]
    return json.dumps(table).encode(), position


def write_raw(path: Path, raw: bytes, data: int = 0, length: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw) if length is None else length) + raw)
        stream.truncate(8 + len(raw) + data)
    return path


def write_file(path: Path, tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None = None) -> Path:
    raw, size = header(tensors, {"format": "pt"} if metadata is None else metadata)
    return write_raw(path, raw, size)


def write_sharded(folder: Path, files: dict[str, dict[str, tuple[str, list[int]]]], **changes: str) -> Path:
    """Files and their index; `changes` maps a key (dots as __) to another file name in the index."""
    weight_map = {key: name for name, tensors in files.items() for key in tensors}
    weight_map |= {key.replace("__", "."): name for key, name in changes.items()}
    for name, tensors in files.items():
        write_file(folder / name, tensors)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
