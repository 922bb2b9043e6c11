"""The files of a checkpoint folder: what each is by its name, which links may be followed, how a file is opened."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..facts import FileProblem
from .safetensors_header import quoted, read_at

LFS_MARK = b"version https://git-lfs.github.com/spec/"
LFS_MAX_SIZE = 1024  # bytes; the pointer format's own limit
MAX_LISTED = 20_000

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_ADAPTERS = ("adapter_model", "pytorch_lora_weights")
_ADAPTER_KEY = re.compile(
    r"(^|\.)(lora_(A|B|down|up)|lora\.(down|up)|lora_linear_layer\.(down|up))\.|\.(alpha|dora_scale)$"
)
_TRAINER_STATE = (
    "optimizer",
    "scheduler",
    "rng_state",
    "scaler",
    "training_args",
    "random_states",
    "sampler",
    "dataloader",
)


class FileRefusedError(Exception):
    """A file that is not opened or cannot be read. `kind` is one of the kinds of `FileProblem`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail

    def problem(self, name: str) -> FileProblem:
        """Return the refusal as a problem of the file `name`."""
        return FileProblem(file=name, kind=self.kind, detail=self.detail)


def file_kind(name: str) -> str:
    """Return what a file is by its name: safetensors, adapter, gguf, dcp, pickle or other."""
    base = name.rsplit("/", 1)[-1].lower()
    if base.endswith(".safetensors"):
        return "adapter" if base.startswith(_ADAPTERS) else "safetensors"
    if base.endswith(".gguf"):
        return "gguf"
    if base.endswith(".distcp") or base == ".metadata":
        return "dcp"
    if base.endswith(_PICKLE_SUFFIXES) and not base.startswith(_TRAINER_STATE):
        return "adapter" if base.startswith(_ADAPTERS) else "pickle"
    return "other"


def are_adapter_keys(keys: Iterable[str]) -> bool:
    """Whether all keys are those of a LoRA adapter, as PEFT, diffusers and Kohya's scripts name them; none is not."""
    named = [_ADAPTER_KEY.search(key) is not None for key in keys]
    return bool(named) and all(named)


def listed(folder: Path) -> tuple[list[str], tuple[FileProblem, ...]]:
    """
    Return the names in `folder`, sorted, without subfolders, and a problem when there are more than are looked at.

    Names of weights and indices count apart from all others, so that no number of others hides one: of either the
    first `MAX_LISTED` are kept. Bytes that are not UTF-8 come out as escapes. Raises `OSError`.
    """
    kept: dict[bool, list[str]] = {True: [], False: []}
    left_out = {True: 0, False: 0}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.endswith(".safetensors"):
                continue
            weighty = file_kind(entry.name) != "other" or ".safetensors.index" in entry.name
            if len(kept[weighty]) < MAX_LISTED:
                kept[weighty].append(entry.name)
            else:
                left_out[weighty] += 1
    problems: tuple[FileProblem, ...] = ()
    if left_out[True]:
        detail = f"{left_out[True]} more files of weights than the {MAX_LISTED} that are looked at in a folder"
        problems = (FileProblem(file=".", kind="unreadable", detail=detail),)
    return sorted((*kept[True], *kept[False])), problems


def decodable_name(name: str) -> str:
    """Return a file name that any encoder takes: undecodable bytes become escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def inside(folder: Path, name: str) -> Path:
    """
    Return the path of the file `name` of `folder` with its links resolved.

    A link may lead anywhere inside the folder and, in a Hugging Face cache, into its `blobs/`. Raises
    `FileRefusedError` for a name or link that leaves, a link in a circle, and a file that is not there.
    """
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or name.startswith("/") or ".." in parts:
        raise FileRefusedError("escapes-folder", f"{quoted(name)} is not a path inside the folder; it was not opened")
    base = os.path.realpath(folder)
    try:
        real = os.path.realpath(folder / name, strict=True)
    except FileNotFoundError as error:
        link = os.path.islink(folder / name)  # noqa: PTH114 - Path.is_symlink() swallows what we want to see
        raise FileRefusedError("missing", "a link to a file that is not there" if link else "no such file") from error
    except (OSError, ValueError) as error:
        raise FileRefusedError("unreadable", _reason(error)) from error
    if not any(real.startswith(root + os.sep) for root in (base, *_cache_blobs(base))):
        raise FileRefusedError("escapes-folder", f"it is a link to {quoted(real)}, outside the folder; not opened")
    return Path(real)


def _cache_blobs(base: str) -> tuple[str, ...]:
    """Return the `blobs` folder when `base` is a snapshot of a Hugging Face cache."""
    above = Path(base).parents
    for depth, parent in enumerate(above):
        if parent.name == "snapshots" and depth < 8:
            blobs = parent.parent / "blobs"
            return (str(blobs),) if blobs.is_dir() else ()
    return ()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """
    Open the regular file `path` for reading and yield its descriptor; `path` must have no link left in it.

    Raises `FileRefusedError` for what is not a regular file (which is never opened: a FIFO would hang), for what cannot
    be read, and when the file changed while it was open.
    """
    try:
        before = os.lstat(path)
        if not stat.S_ISREG(before.st_mode):
            raise FileRefusedError("unreadable", f"it is {_mode_name(before.st_mode)}, not a file; it was not opened")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise FileRefusedError("unreadable", _reason(error)) from error
    try:
        first = os.fstat(descriptor)
        if not stat.S_ISREG(first.st_mode):
            raise FileRefusedError("changed", "it was replaced by something else while it was opened")
        yield descriptor
        last = os.fstat(descriptor)
        if (first.st_size, first.st_mtime_ns) != (last.st_size, last.st_mtime_ns):
            raise FileRefusedError("changed", "size or time of the file changed while it was read")
    except OSError as error:
        raise FileRefusedError("unreadable", _reason(error)) from error
    finally:
        os.close(descriptor)


def _mode_name(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something special")


def is_lfs_pointer(descriptor: int) -> bool:
    """Whether the open file is a Git-LFS pointer instead of the payload."""
    size = os.fstat(descriptor).st_size
    return size <= LFS_MAX_SIZE and read_at(descriptor, len(LFS_MARK), 0) == LFS_MARK


def read_small(folder: Path, name: str, limit: int) -> bytes:
    """
    Return the whole text file `name` of `folder`.

    Raises `FileRefusedError` when it cannot be read, is a Git-LFS pointer, is empty or has more than `limit` bytes.
    """
    with opened(inside(folder, name)) as descriptor:
        size = os.fstat(descriptor).st_size
        if size == 0:
            raise FileRefusedError("empty", "the file has no bytes")
        if size > limit:
            raise FileRefusedError("unreadable", f"{size} bytes are more than the {limit} that are read of such a file")
        if is_lfs_pointer(descriptor):
            raise FileRefusedError("lfs-pointer", "a Git-LFS pointer, the file itself was not fetched")
        return read_at(descriptor, size, 0)
