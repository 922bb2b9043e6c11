"""What the tests of the weights share: checkpoints, their sources, and running a comparison."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file

from shardlint.weights.compare.bits import torch_dtype
from shardlint.weights.compare.live_tensor import LiveBytes
from shardlint.weights.compare.pieces import Piece
from shardlint.weights.compare.threads import Compared, Options, compare
from shardlint.weights.storage.stored_tensors import TensorSource
from shardlint.weights.symbolic.tensor import SymbolicTensor


def write(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, TensorSource]:
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    return read(path)


def read(path: Path) -> dict[str, TensorSource]:
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    found = {}
    for key, entry in header.items():
        if key != "__metadata__":
            dtype = torch_dtype(entry["dtype"])
            assert dtype is not None
            begin = 8 + length + entry["data_offsets"][0]
            found[key] = TensorSource(key=key, shape=tuple(entry["shape"]), dtype=dtype, path=path, begin=begin)
    return found


def leaf(source: TensorSource) -> SymbolicTensor:
    return SymbolicTensor.leaf(source.key, source.shape, source.dtype)


def pieces_of(live: LiveBytes, region: SymbolicTensor, sources: dict[str, TensorSource]) -> list[Piece]:
    found = []
    for block in region.blocks:
        dtype = region.dtype if block.source is None else getattr(block.source, "dtype", None)
        found.append(Piece(live, block, dtype or sources[block.source].dtype))
    return found


def run(live: torch.Tensor, region: SymbolicTensor, sources: dict[str, TensorSource], **options) -> Compared:
    staged = options.pop("staged", False)
    live_tensor = LiveBytes("live", live, staged=staged)
    return compare(pieces_of(live_tensor, region, sources), sources, Options(threads=1, **options))
