"""Checkpoint folders as data: read all headers of a folder, edit them, write them back with files full of holes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

from support.safetensors_files import write_raw

BITS = {"F64": 64, "F32": 32, "BF16": 16, "F16": 16, "I64": 64, "I32": 32, "U8": 8, "I8": 8, "BOOL": 8, "F8_E4M3": 8}

Tensor = tuple[str, list[int]]
Files = dict[str, dict[str, Tensor]]


def read_files(folder: Path) -> Files:
    """Every safetensors file with its tensors as (dtype, shape)."""
    files: Files = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            table = json.loads(stream.read(length))
        table.pop("__metadata__", None)
        files[path.name] = {key: (info["dtype"], info["shape"]) for key, info in table.items()}
    return files


def write_files(folder: Path, files: Files, weight_map: dict[str, str] | None = None) -> None:
    """Write headers, and data parts that have the right size and no contents."""
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    for name, tensors in files.items():
        table, position = {}, 0
        for key, (dtype, shape) in tensors.items():
            end = position + math.prod(shape) * BITS[dtype] // 8
            table[key] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
            position = end
        write_raw(folder / name, json.dumps(table).encode(), position)
    if list(files) != ["model.safetensors"]:
        found = {key: name for name, tensors in files.items() for key in tensors}
        index = {"metadata": {}, "weight_map": found | (weight_map or {})}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def edit(folder: Path, change: Callable[[Files], dict[str, str] | None]) -> None:
    """Change the files in place; what `change` returns overrides entries of the index."""
    files = read_files(folder)
    overrides = change(files)
    write_files(folder, files, overrides)


def in_two_files(tensors: dict[str, Tensor]) -> Files:
    """The same tensors in two shards, cut in the middle."""
    names = list(tensors)
    half = max(1, len(names) // 2)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    return {
        first: {name: tensors[name] for name in names[:half]},
        second: {name: tensors[name] for name in names[half:]},
    }
