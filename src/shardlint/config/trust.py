"""
Whose settings a file holds: those of whoever runs shardlint, or of a folder that somebody else may have written.

Settings decide which rules run, name code to import and files to write. Only the user's own may do that, so a file that
was merely found is used only where the user works, never out of what is being judged.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..checkpoint.files import FileRefusedError, file_kind, opened
from ..checkpoint.safetensors_header import read_at

_CONFIG = "config.json"
_MODEL_MARKS = (b'"model_type"', b'"architectures"')
_MAX_CONFIG = 2**20  # bytes in which the marks are looked for
_PICKLE_STEMS = ("pytorch_model", "adapter_model", "model", "consolidated", "diffusion_pytorch_model")
_MOST_NAMES = 100_000  # names of one folder


def inspected_folders(paths: Iterable[str | os.PathLike[str] | None]) -> tuple[Path, ...]:
    """
    The folders, with links resolved, that these targets, checkpoints and references lie in.

    A folder stands for itself, a file with weights or an index for the folder around it. What is neither (a builder, a
    facts file, a path that is not there) is no folder that is inspected.
    """
    return tuple(dict.fromkeys(folder for path in paths if path is not None for folder in _folders_of(path)))


def _folders_of(given: str | os.PathLike[str]) -> Iterator[Path]:
    try:
        path = Path(given).expanduser()
        if path.is_dir():
            yield path.resolve()
        elif path.exists() and (file_kind(path.name) != "other" or ".safetensors.index" in path.name):
            yield path.absolute().parent.resolve()
            yield path.resolve().parent
    except (OSError, ValueError, RuntimeError):  # no such home folder, a NUL in the name
        return


def distrust(file: Path, inspected: Iterable[Path], start: Path) -> str:
    """
    Why the settings `file`, found by climbing from the folder `start`, must not be used; empty when it may be.

    `inspected` are folders with their links resolved.
    """
    places = {file.absolute().parent, file.resolve().parent}
    for folder in inspected:
        if any(place.is_relative_to(folder) for place in places):
            return f"it lies in {folder}, which is inspected"
        if start.resolve().is_relative_to(folder):
            return f"the working folder lies in {folder}, which is inspected"
    for place in places:
        for above in _up_to_project(place):
            if holds_model(above):
                return f"{above} holds the files of a model, so that it may be somebody else's"
    return ""


def _up_to_project(place: Path) -> Iterator[Path]:
    """The folder and those above it, up to the one with `.git`; the home folder and places for all are nobody's."""
    shared = {Path(tempfile.gettempdir()).resolve(), Path(place.anchor), Path(os.path.expanduser("~"))}  # noqa: PTH111
    for above in (place, *place.parents):
        if above in shared:
            return
        yield above
        if os.path.lexists(above / ".git"):
            return


def holds_model(folder: Path) -> bool:
    """Whether the folder holds weights, an index of weights, or the configuration of a model: a checkpoint."""
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= _MOST_NAMES or _is_of_model(entry.name):
                    return True
    except OSError:
        return False
    return _configures_model(folder / _CONFIG)


def _is_of_model(name: str) -> bool:
    kind = file_kind(name)
    if kind == "pickle":
        return name.lower().startswith(_PICKLE_STEMS)
    return kind != "other" or ".safetensors.index" in name


def _configures_model(path: Path) -> bool:
    try:
        with opened(path.resolve()) as descriptor:
            size = min(os.fstat(descriptor).st_size, _MAX_CONFIG)
            text = read_at(descriptor, size, 0)
    except (FileRefusedError, OSError, RuntimeError, ValueError):
        return False
    return any(mark in text for mark in _MODEL_MARKS)
