"""Optimizer states on disk: their keys, groups and shapes, read as inert data. No tensor is read, no torch needed."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from ..facts import EMPTY, FrozenDict, StoredOptimizerFacts, StoredParameterState
from ..introspect.plain import encodable
from ..names import counted, natural_key
from .dcp_metadata import MAX_DIMS
from .files import FileRefusedError, inside, opened, read_small
from .inert_pickle import InertObject, StreamError, read_stream

_TORCH_NAMES = ("optimizer.pt", "optimizer.pth", "optimizer.bin")
_METADATA = ".metadata"
_MAX_STREAM = 128 * 2**20  # bytes
MAX_FOLDERS = 200
_MAX_PATH = 256  # steps from the top of a state dict to a value
_MAX_DIGITS = 20  # of an integer that is a key; Python refuses to write one of thousands


def stored_optimizers(folder: Path) -> tuple[StoredOptimizerFacts, ...]:
    """
    The optimizer states in a checkpoint folder: `optimizer.pt` and its like, and the `.metadata` of a distributed one.

    Also looks one level down. What cannot be read has a `problem`; a distributed checkpoint without any optimizer
    state is none.
    """
    if not folder.is_dir():
        return ()
    try:
        inner = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return ()
    read = (_read(folder, name) for name in _names(folder, inner[:MAX_FOLDERS]))
    return (*(stored for stored in read if stored is not None), *_left_out(len(inner) - MAX_FOLDERS))


def _left_out(count: int) -> Iterator[StoredOptimizerFacts]:
    """A mark that stands for what the folders beyond the limit may hold."""
    if count > 0:
        problem = f"{counted(count, 'more folder')} than the {MAX_FOLDERS} that are looked into may hold states"
        yield StoredOptimizerFacts(path=".", format="torch", problem=problem)


def _names(folder: Path, inner: list[str]) -> Iterator[str]:
    for place in ("", *inner):
        for name in (*_TORCH_NAMES, _METADATA):
            path = f"{place}/{name}" if place else name
            if (folder / path).is_file():
                yield path


def _read(folder: Path, name: str) -> StoredOptimizerFacts | None:
    distributed = name.endswith(_METADATA)
    facts = StoredOptimizerFacts(path=encodable(name), format="dcp" if distributed else "torch")
    try:
        if distributed:
            return _from_metadata(facts, read_stream(read_small(folder, name, _MAX_STREAM)))
        return _from_state_dict(facts, read_stream(_stream_of_archive(folder, name)))
    except (FileRefusedError, StreamError) as error:
        return evolve(facts, problem=str(error))


def _stream_of_archive(folder: Path, name: str) -> bytes:
    """The object stream of a file that `torch.save` wrote: a zip archive whose tensors are members of their own."""
    try:
        with opened(inside(folder, name)) as descriptor, io.FileIO(descriptor, closefd=False) as file:
            data = _member(zipfile.ZipFile(file))
    except (FileRefusedError, StreamError):
        raise
    except Exception as error:  # zipfile raises many kinds of errors for invalid data
        raise StreamError(f"no archive as torch.save writes it: {type(error).__name__}: {error}"[:300]) from error
    if len(data) > _MAX_STREAM:
        raise StreamError(f"its object stream has more than {_MAX_STREAM} bytes")
    return data


def _member(archive: zipfile.ZipFile) -> bytes:
    member = next((info for info in archive.infolist() if info.filename.endswith("/data.pkl")), None)
    if member is None:
        raise StreamError("a zip archive without data.pkl")
    with archive.open(member) as stream:
        return stream.read(_MAX_STREAM + 1)


def _mapping(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, InertObject):
        return value.items
    return value if isinstance(value, Mapping) else None


def _sequence(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _from_state_dict(facts: StoredOptimizerFacts, value: Any) -> StoredOptimizerFacts:
    top = _mapping(value) or {}
    if "state" not in top and "param_groups" not in top:
        top = _mapping(top.get("optimizer")) or _mapping(top.get("optimizer_state_dict")) or {}
    state, groups = _mapping(top.get("state")), _sequence(top.get("param_groups"))
    if state is None or not groups:
        return evolve(
            facts, problem="expected the keys state and param_groups, as an optimizer's state_dict() has them"
        )
    shapes = {key: _shapes(entry) for key, entry in state.items() if isinstance(key, (str, int))}
    states: list[StoredParameterState] = []
    sizes: list[int] = []
    for number, group in enumerate(_mapping(item) or {} for item in groups):
        keys = _sequence(group.get("params"))
        names = _sequence(group.get("param_names"))
        sizes.append(len(keys))
        for place, key in enumerate(keys):
            name = names[place] if len(names) == len(keys) else key
            known = shapes.get(key, EMPTY) if isinstance(key, (str, int)) else EMPTY
            states.append(_entry(_text(name), number, place, known))
    named = all(not state.key.isdecimal() for state in states)
    return evolve(facts, named=named, group_sizes=tuple(sizes), parameters=tuple(states))


def _entry(key: str, group: int | None, position: int | None, shapes: FrozenDict) -> StoredParameterState:
    return StoredParameterState(key=encodable(key), group=group, position=position, shapes=shapes)


def _text(value: Any) -> str:
    """A key as text; anything but texts and numbers has none: what a hostile stream nests has an endless one."""
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_MAX_DIGITS else "?"
    return value if isinstance(value, str) else "?"


def _shapes(entry: Any) -> FrozenDict:
    """The shapes of the state tensors with dimensions, by name."""
    shapes = {_text(name): _shape(value) for name, value in (_mapping(entry) or {}).items()}
    return FrozenDict({name: shape for name, shape in shapes.items() if shape})


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of a tensor as `torch.save` writes it: the third argument of the call that rebuilds it."""
    if not isinstance(value, InertObject) or not isinstance(value.arguments, tuple):
        return ()
    if value.called.startswith("_rebuild_tensor") and len(value.arguments) > 2:
        return _ints(value.arguments[2])
    if value.called == "_rebuild_parameter" and value.arguments:
        return _shape(value.arguments[0])
    return ()


def _ints(value: Any) -> tuple[int, ...]:
    if (
        isinstance(value, InertObject)
        and value.called == "Size"
        and isinstance(value.arguments, tuple)
        and value.arguments
    ):
        value = value.arguments[0]
    if not isinstance(value, (list, tuple)) or len(value) > MAX_DIMS:
        return ()
    numbers = _sequence(value)
    return tuple(numbers) if all(type(number) is int for number in numbers) else ()


def _from_metadata(facts: StoredOptimizerFacts, value: Any) -> StoredOptimizerFacts | None:
    state = _mapping(getattr(value, "state", None)) or {}
    tensors, paths = _mapping(state.get("state_dict_metadata")), _mapping(state.get("planner_data")) or {}
    if tensors is None:
        return evolve(facts, problem="expected the metadata of a distributed checkpoint")
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, entry in tensors.items():
        place = _state_key(paths.get(key) or key) if isinstance(key, str) else None
        if place is not None:
            fields = _mapping(getattr(entry, "state", None)) or {}
            shape = _ints(fields.get("size"))
            shapes.setdefault(place[0], {}).update({place[1]: shape} if shape else {})
    if not shapes:
        return None
    named = not all(key.isdecimal() for key in shapes)
    ordered = sorted(shapes, key=natural_key)
    entries = [_entry(key, None, None if named else int(key), FrozenDict(shapes[key])) for key in ordered]
    return evolve(facts, named=named, parameters=tuple(entries))


def _state_key(path: Any) -> tuple[str, str] | None:
    """`(parameter, state)` of a key below an optimizer's `state`, nested (a path) or flattened (a dotted name)."""
    if isinstance(path, (list, tuple)) and len(path) > _MAX_PATH:  # many keys may share one path
        return None
    parts = [_text(part) for part in path] if isinstance(path, (list, tuple)) else [_text(path)]
    for number, part in enumerate(parts):
        if part == "state" and len(parts) > number + 2:
            return parts[number + 1], parts[-1]
        head, _, rest = part.partition("state.")
        if rest and (not head or head.endswith(".")) and "." in rest and number == len(parts) - 1:
            name, _, kind = rest.rpartition(".")
            return name, kind
    return None
