"""Importing what a user named: `package.module:name` or `path/file.py:name`, with errors that say what is wrong."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ..names import did_you_mean

PRIVATE_PREFIX = "_shardlint_file_"
_PRIVATE = re.compile(rf"\A{PRIVATE_PREFIX}(\w+)_[0-9a-f]{{16}}\Z")


class ImportProblem(Exception):  # noqa: N818 - it becomes the error of whoever asked
    """
    What was named cannot be imported. `cause` is the user's own exception when importing their code raised it.

    `origin` is the file of the code that raised, when it is known.
    """

    def __init__(self, problem: str, cause: BaseException | None = None, origin: str | None = None) -> None:
        super().__init__(problem)
        self.cause = cause
        self.origin = origin


def public_module(name: str) -> str:
    """
    The name of a module as its author knows it: `train` for the file `train.py` that was imported under a private name.

    The private name depends on where the file lies, so facts that held it would differ from machine to machine.
    """
    return _PRIVATE.sub(r"\1", name)


def import_object(text: str) -> Any:
    """
    Return the object that `package.module:name` or `path/file.py:name` names; `name` may have dots.

    The current folder is on the module path while a module is imported. A file is imported under a private name that
    is its own, once. Raises `ImportProblem`.
    """
    place, _, name = text.rpartition(":")
    if not place or not all(part.isidentifier() for part in name.split(".")):
        raise ImportProblem(f"expected package.module:name or path/file.py:name, got {text!r}")
    module = import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    return _attribute(module, name, place)


def import_file(path: Path) -> ModuleType:
    """Import a Python file under a private name. Raises `ImportProblem`."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ImportProblem(f"no such file: {path}")
    digest = hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
    name = f"{PRIVATE_PREFIX}{path.stem if path.stem.isidentifier() else 'module'}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportProblem(f"{path} is not a Python file that can be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling in the file look their module up
    try:
        with _on_path(path.parent):
            spec.loader.exec_module(module)
    except KeyboardInterrupt:
        del sys.modules[name]
        raise
    except BaseException as error:  # SystemExit, and the private ones of torch, pytest, asyncio
        del sys.modules[name]
        raise ImportProblem(_raised(path, error), error, str(path)) from error
    return module


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ImportProblem(f"{name!r} is not a module name; a file is named with its .py")
    try:
        with _on_path(Path.cwd()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise ImportProblem(_no_module(name, missing)) from None
        raise ImportProblem(_raised(name, error), error, None) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ImportProblem(_raised(name, error), error, None) from error


def _no_module(name: str, missing: str) -> str:
    what = f"no module named {missing!r}" if missing == name else f"no module named {missing!r} (for {name!r})"
    near = [path.stem for path in Path.cwd().glob("*.py")]
    hint = did_you_mean(missing, near)
    return f"{what}{hint}; it must be installed or lie in the current folder {Path.cwd()}"


def _raised(what: object, error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # its own __str__ raises
        text = "(its text cannot be had)"
    return f"importing {what} raised {type(error).__name__}: {text}"


def _attribute(module: ModuleType, name: str, place: str) -> Any:
    value: Any = module
    seen: list[str] = []
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            holder = ".".join([place, *seen]) if seen else place
            public = [public_name for public_name in dir(value) if not public_name.startswith("_")]
            hint = did_you_mean(part, public)
            callables = (
                [public_name for public_name in public if callable(getattr(value, public_name, None))][:8]
                if not hint
                else []
            )
            known = f"; it has {', '.join(callables)}" if callables else ""
            raise ImportProblem(f"{holder} has no {part!r}{hint}{known}") from None
        seen.append(part)
    return value


@contextlib.contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """Put the folder first on the module path and leave it there last: what was imported may import later."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)
        if entry not in sys.path and not (entry == str(Path.cwd()) and "" in sys.path):
            sys.path.append(entry)


def frame_of(error: BaseException, origin: str | None) -> str:
    """
    `file:line in function` of the innermost frame of the user's code.

    That is the innermost one in the folder of `origin` (their file); without it, or without such a frame, the innermost
    one that lies in no installed package and is none of shardlint's own.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _internal(frame.filename)]
    folder = Path(origin).resolve().parent if origin else None
    theirs = [frame for frame in frames if not _installed(frame.filename)]
    own = [frame for frame in frames if folder is not None and Path(frame.filename).is_relative_to(folder)]
    chosen = (theirs or own or frames)[-1:]
    return "".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in chosen)


def _installed(filename: str) -> bool:
    parts = Path(filename).parts
    return "site-packages" in parts or "dist-packages" in parts or filename.startswith(_STDLIB)


def _internal(filename: str) -> bool:
    return filename.startswith("<frozen") or filename in (__file__, _TARGETS)


_STDLIB = str(Path(contextlib.__file__).parent)
_TARGETS = str(Path(__file__).with_name("targets.py"))
