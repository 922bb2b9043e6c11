"""Inputs that nearly are what they should be: the structure is kept, one or two things in it are not."""

import io
import json
import pickle
import random
import struct
from pathlib import Path

import torch

VALUES = (b"-0", b"1.0", b"-1", b"1e3", b"null", b'""', b"[]", b"{}", b"true", b"9" * 5000, b"18446744073709551616")
HEADER = {
    "__metadata__": {"format": "pt"},
    "a.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "BF16", "shape": [1, 4], "data_offsets": [8, 16]},
}
CONFIG = {"model_type": "llama", "architectures": ["X"], "num_hidden_layers": 2, "vocab_size": 8}
INDEX = {"metadata": {"total_size": 16}, "weight_map": {"a.weight": "model.safetensors", "b": "model.safetensors"}}


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """`raw` with a value, a slice or some bytes changed."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and (numbers := [i for i, byte in enumerate(data) if 48 <= byte <= 57]):
            at = rng.choice(numbers)
            data[at : at + 1] = rng.choice(VALUES)
        elif kind == 1:
            data[at : at + rng.randint(1, 8)] = b""
        elif kind == 2:
            data[at:at] = data[max(0, at - 20) : at]
        elif kind == 3 and at < len(data):
            data[at] = rng.randrange(256)
        else:
            data[at : at + 4] = rng.choice(VALUES)
    return bytes(data)


def optimizer() -> bytes:
    """A `torch.save` archive of an optimizer."""
    out = io.BytesIO()
    torch.save({"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": [{"params": [0]}]}, out)
    return out.getvalue()


def folder(rng: random.Random, path: Path) -> str:
    """Write a folder of which one part is mutated, and return which."""
    part = rng.choice(["header", "header", "config", "index", "metadata", "optimizer"])
    raw = json.dumps(HEADER).encode()
    raw = mutated(rng, raw) if part == "header" else raw
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(16))
    config = json.dumps(CONFIG).encode()
    (path / "config.json").write_bytes(mutated(rng, config) if part == "config" else config)
    if part == "index":
        (path / "model.safetensors").rename(path / "part.safetensors")
        text = json.dumps(INDEX).replace("model.", "part.").encode()
        (path / "model.safetensors.index.json").write_bytes(mutated(rng, text))
    if part == "metadata":
        (path / "model.safetensors").unlink()
        (path / ".metadata").write_bytes(mutated(rng, pickle.dumps({"state_dict_metadata": {}, "storage_data": {}})))
    if part == "optimizer":
        (path / "optimizer.pt").write_bytes(mutated(rng, optimizer()))
    return part
