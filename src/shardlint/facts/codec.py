"""Facts as JSON: encode, decode, schema. A newer version is refused; unknown fields are named."""

from __future__ import annotations

from typing import Any

import msgspec

from .frozen import FrozenDict, freeze, thaw
from .snapshot import Facts


def _enc_hook(value: object) -> Any:
    if isinstance(value, FrozenDict):
        return thaw(value)
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def decode_hook(kind: type, value: object) -> Any:
    """Make a `FrozenDict` of a decoded mapping: msgspec's hook for the types that it does not know."""
    if kind is FrozenDict:
        return freeze(value)
    raise NotImplementedError(f"cannot decode {kind.__name__}")


_ENCODER = msgspec.json.Encoder(enc_hook=_enc_hook)
_DECODER = msgspec.json.Decoder(Facts, dec_hook=decode_hook)


def encode_facts(facts: Facts) -> bytes:
    """Return the facts as one line of JSON."""
    return _ENCODER.encode(facts)


def decode_facts(data: bytes) -> Facts:
    """Return the facts that `data` holds. Raises `msgspec.ValidationError` with the path of what is wrong."""
    return _DECODER.decode(data)
