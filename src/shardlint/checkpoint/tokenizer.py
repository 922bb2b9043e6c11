"""How many tokens a tokenizer next to the weights can give: from its JSON files, which are untrusted text."""

from __future__ import annotations

from pathlib import Path

import msgspec

from .files import FileRefusedError, read_small

_MAX_BYTES = 128 * 2**20


class _Added(msgspec.Struct):
    id: int


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[msgspec.Raw] = msgspec.field(default_factory=dict)


class _Tokenizer(msgspec.Struct):
    model: _Model = msgspec.field(default_factory=_Model)
    added_tokens: list[_Added] = msgspec.field(default_factory=list)


_FAST = msgspec.json.Decoder(_Tokenizer)
_SLOW = msgspec.json.Decoder(dict[str, int])


def tokenizer_size(folder: Path) -> int | None:
    """
    Return one more than the largest token number in `tokenizer.json`, else in `vocab.json` and `added_tokens.json`.

    None when there is no tokenizer, or one that cannot be read.
    """
    try:
        tokenizer = _FAST.decode(read_small(folder, "tokenizer.json", _MAX_BYTES))
    except (FileRefusedError, OSError, msgspec.MsgspecError, RecursionError):
        return _slow(folder)
    vocab = tokenizer.model.vocab
    numbers = list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]
    return _one_more([*numbers, *(added_token.id for added_token in tokenizer.added_tokens)])


def _slow(folder: Path) -> int | None:
    numbers: list[int] = []
    for name in ("vocab.json", "added_tokens.json"):
        try:
            numbers += _SLOW.decode(read_small(folder, name, _MAX_BYTES)).values()
        except (FileRefusedError, OSError, msgspec.MsgspecError, RecursionError):
            continue
    return _one_more(numbers)


def _one_more(numbers: list[int]) -> int | None:
    known = [number for number in numbers if 0 <= number < 2**31]
    return max(known) + 1 if known else None
