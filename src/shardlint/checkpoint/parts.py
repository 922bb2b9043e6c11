"""What lies in the subfolders of a checkpoint folder: parts that it names itself, and checkpoints of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..facts import AsideFacts
from .files import FileRefusedError, file_kind, read_small
from .safetensors_header import quoted

MODULES = "modules.json"
PIPELINE = "model_index.json"
_MAX_BYTES = 2**20
_MAX_FOLDERS = 200
_TELLING = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin")


def parts_aside(folder: Path) -> tuple[AsideFacts, ...]:
    """
    The parts of a composite checkpoint that lie in subfolders with weights of their own, which are not read with it.

    Parts that the folder names (`modules.json` of sentence-transformers, `model_index.json` of diffusers) have the kind
    `part`; other subfolders with safetensors files have the kind `subfolder`.
    """
    named = dict(_named_parts(folder))
    return tuple(
        AsideFacts(
            name=name,
            kind="part" if name in named else "subfolder",
            detail=f"{named[name]} names it as a part" if name in named else "it has weights of its own",
        )
        for name in weight_folders(folder)
    )


def weight_folders(folder: Path) -> tuple[str, ...]:
    """The names of the subfolders that hold weights, sorted by name; hidden ones and links are left out."""
    try:
        with os.scandir(folder) as entries:
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return ()
    shown = sorted(name for name in folders if not name.startswith("."))
    return tuple(name for name in shown[:_MAX_FOLDERS] if _has_weights(folder / name))


def likeliest(folder: Path) -> tuple[str, ...]:
    """
    The subfolders with weights that somebody who named `folder` probably means, the likeliest first.

    Of checkpoints of a trainer (`checkpoint-500`) the last is the likeliest.
    """

    def number(name: str) -> int:
        digits = name.rpartition("-")[2]
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else -1

    return tuple(sorted(weight_folders(folder), key=lambda name: (-number(name), name)))


def nothing_here(folder: Path) -> str:
    """A clause that says which subfolder of a folder without weights is probably meant; empty when none is."""
    children = likeliest(folder)
    if not children:
        return ""
    shown = ", ".join(quoted(str(folder / name), 120) for name in children[:5])
    if (folder / PIPELINE).is_file():
        return f"; it is a diffusers pipeline: look at each of its components: {shown}"
    return f"; did you mean {shown}?"


def _has_weights(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(
                file_kind(entry.name) in ("safetensors", "adapter", "dcp", "gguf") or entry.name in _TELLING
                for _, entry in zip(range(_MAX_FOLDERS), entries, strict=False)
            )
    except OSError:
        return False


def _named_parts(folder: Path) -> Iterator[tuple[str, str]]:
    modules = _read(folder, MODULES)
    for module in modules if isinstance(modules, list) else ():
        path = module.get("path") if isinstance(module, Mapping) else None
        if isinstance(path, str) and path:
            yield path, MODULES
    pipeline = _read(folder, PIPELINE)
    for name in pipeline if isinstance(pipeline, Mapping) else ():
        if not name.startswith("_"):
            yield name, PIPELINE


def _read(folder: Path, name: str) -> Any:
    try:
        return json.loads(read_small(folder, name, _MAX_BYTES))
    except (FileRefusedError, OSError, ValueError, RecursionError):
        return None
