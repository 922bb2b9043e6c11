"""The JSON files next to the weights: the index, `config.json`, `generation_config.json`. All are untrusted text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from ..facts import EMPTY, FileProblem, FrozenDict, IndexFacts, freeze
from ..names import first_line
from .files import MAX_LISTED, FileRefusedError, read_small
from .safetensors_header import quoted

MAX_INDEX = 256 * 2**20  # bytes
MAX_CONFIG = 32 * 2**20  # bytes
MAX_DEPTH = 60


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


_INDEX = msgspec.json.Decoder(_Index)


def read_json(folder: Path, name: str, limit: int = MAX_CONFIG) -> FrozenDict:
    """
    Return the JSON object that the file `name` of `folder` holds, as frozen plain values.

    Raises `FileRefusedError`: kind `index-json` for what is not valid JSON, `index-schema` for what is not an object.
    """
    return _plain_object(read_small(folder, name, limit))


def _plain_object(raw: bytes) -> FrozenDict:
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_int=_bounded_integer)
        if not isinstance(value, dict):
            raise FileRefusedError("index-schema", f"expected a JSON object, got {type(value).__name__}")
        frozen = freeze(_encodable(value, 0))
        assert isinstance(frozen, FrozenDict)
        return frozen
    except (ValueError, RecursionError) as error:
        raise FileRefusedError("index-json", first_line(error, 300)) from error


def _bounded_integer(text: str) -> int | float:
    return int(text) if len(text) <= 18 else float(text)


def _encodable(value: Any, depth: int) -> Any:
    """Return `value` with lone surrogates replaced, so that facts can always be written."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key, depth): _encodable(element, depth + 1) for key, element in value.items()}
    if isinstance(value, list):
        return [_encodable(element, depth + 1) for element in value]
    return value


def read_config(folder: Path, name: str = "config.json") -> tuple[FrozenDict | None, tuple[FileProblem, ...]]:
    """Return the configuration `name` of `folder` (None when there is none to be read) and what is wrong with it."""
    try:
        return read_json(folder, name), ()
    except FileRefusedError as error:
        if error.kind == "missing" and not (folder / name).is_symlink():
            return None, ()
        kind = {"index-json": "config-json", "index-schema": "config-json"}.get(error.kind, error.kind)
        return None, (FileProblem(file=name, kind=kind, detail=error.detail),)


def read_index(folder: Path, name: str) -> tuple[IndexFacts | None, tuple[FileProblem, ...]]:
    """Return the index `name` of `folder` (None when it cannot be used) and what is wrong with it."""
    try:
        raw = read_small(folder, name, MAX_INDEX)
        index = _INDEX.decode(raw.removeprefix(b"\xef\xbb\xbf"))
        metadata = _plain_object(bytes(index.metadata)) if bytes(index.metadata) != b"null" else EMPTY
    except FileRefusedError as error:
        return None, (error.problem(name),)
    except msgspec.ValidationError as error:
        return None, (FileProblem(file=name, kind="index-schema", detail=f"expected a weight_map of strings: {error}"),)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return None, (FileProblem(file=name, kind="index-json", detail=first_line(error, 300)),)
    total = metadata.get("total_size")
    total = total if isinstance(total, int) and not isinstance(total, bool) else None
    files: dict[str, str] = {}
    named = len(set(index.weight_map.values()))
    if named > MAX_LISTED:
        detail = f"it names {named} files, more than the {MAX_LISTED} that are looked at in a folder"
        return None, (FileProblem(file=name, kind="index-schema", detail=detail),)
    weight_map = {key: files.setdefault(file, file) for key, file in index.weight_map.items()}  # one string a file
    facts = IndexFacts(name=name, weight_map=FrozenDict(weight_map), total_size=total, metadata=metadata)
    return facts, _index_problems(facts)


def _index_problems(index: IndexFacts) -> tuple[FileProblem, ...]:
    strange = {file for file in index.weight_map.values() if not file.endswith((".safetensors", ".bin"))}
    return tuple(
        FileProblem(file=index.name, kind="index-schema", detail=f"it maps keys to {quoted(file)}, no weight file")
        for file in sorted(strange)[:20]
    )
