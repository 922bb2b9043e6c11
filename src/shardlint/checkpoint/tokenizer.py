"""How many tokens a tokenizer next to the weights can give: from its files, which are untrusted bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..facts import Unknown
from .files import FileRefusedError, read_small

_MAX_BYTES = 128 * 2**20
_LARGEST = 2**31  # no embedding has so many rows


class _Added(msgspec.Struct):
    id: int


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[msgspec.Raw] = msgspec.field(default_factory=dict)


class _Tokenizer(msgspec.Struct):
    model: _Model = msgspec.field(default_factory=_Model)
    added_tokens: list[_Added] = msgspec.field(default_factory=list)


_FAST = msgspec.json.Decoder(_Tokenizer)
_SLOW = msgspec.json.Decoder(dict[str, int])


class _UnreadTokenizerError(Exception):
    """A file of a tokenizer that is there and cannot be read. The text names it and says why."""


def tokenizer_size(folder: Path) -> int | Unknown | None:
    """
    Return one more than the largest token number of the tokenizer in `folder`.

    Read are `tokenizer.json`, else `vocab.json`, `vocab.txt`, or a SentencePiece model, with `added_tokens.json`.
    None when there is none of them, or none with a number in it; `Unknown` when one is there and cannot be read.
    """
    try:
        for readers in (_WHOLE, _VOCABULARIES):
            numbers = [number for name, read in readers.items() for number in _numbers(folder, name, read)]
            if numbers:
                return max(numbers) + 1
    except _UnreadTokenizerError as error:
        return Unknown(str(error))
    return None


def _numbers(folder: Path, name: str, read: Callable[[bytes], list[int]]) -> list[int]:
    """The token numbers of one file, none when it is not there. Raises `_UnreadTokenizerError`."""
    if not _is_there(folder / name):
        return []
    try:
        numbers = read(read_small(folder, name, _MAX_BYTES))
    except FileRefusedError as error:
        raise _UnreadTokenizerError(f"{name} cannot be read: {error.detail}") from error
    except (OSError, ValueError, RecursionError) as error:  # what msgspec raises is a ValueError
        text = getattr(error, "strerror", None) or str(error)
        raise _UnreadTokenizerError(f"{name} cannot be read: {text.partition(' - ')[0]}") from error
    beyond = next((number for number in numbers if number >= _LARGEST), None)
    if beyond is not None:
        raise _UnreadTokenizerError(f"{name} cannot be read: it has the token number {beyond}")
    return [number for number in numbers if number >= 0]


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:  # a folder that must not be searched: reading will say so
        return True
    return True


def _fast(data: bytes) -> list[int]:
    tokenizer = _FAST.decode(data)
    vocab = tokenizer.model.vocab
    numbers = list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]
    return [*numbers, *(added_token.id for added_token in tokenizer.added_tokens)]


def _slow(data: bytes) -> list[int]:
    return list(_SLOW.decode(data).values())


def _lines(data: bytes) -> list[int]:
    """One token a line, numbered from 0."""
    return [len(data.decode().splitlines()) - 1]


def _pieces(data: bytes) -> list[int]:
    """The pieces of a SentencePiece model, a protobuf message whose field 1 is repeated once a piece."""
    count = position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        field, wire = tag >> 3, tag & 7
        if wire not in (0, 1, 2, 5):
            raise ValueError(f"it is no SentencePiece model (wire type {wire} at byte {position})")
        length = {1: 8, 5: 4}.get(wire, 0)
        if wire in (0, 2):
            value, position = _varint(data, position)
            length = value if wire == 2 else 0
        position += length
        count += field == 1 and wire == 2
    if position != len(data) or not count:
        raise ValueError("it is no SentencePiece model, or is cut off")
    return [count - 1]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number that begins at `position`, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"it is no SentencePiece model (no number at byte {position})")


_WHOLE = {"tokenizer.json": _fast}
_VOCABULARIES = {
    "vocab.json": _slow,
    "vocab.txt": _lines,
    "tokenizer.model": _pieces,
    "spiece.model": _pieces,
    "sentencepiece.bpe.model": _pieces,
    "added_tokens.json": _slow,
}
"""The files of tokenizers that keep their added tokens apart."""
