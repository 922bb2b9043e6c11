"""
Facts as JSON: encode, decode, schema.

A facts file is one JSON object with a `version`. A newer version is refused; so are unknown fields, duplicate keys,
wrong types and numbers of records that are not there, each named with its path. JSON has no NaN and no infinities:
`freeze` keeps them as the texts `NaN`, `Infinity` and `-Infinity`, and a file with the bare words is refused. Names
that are no Unicode text (file names in another encoding) are written with backslash escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from .frozen import FrozenDict, freeze, thaw
from .references import reference_problems
from .schema import facts_schema, facts_schema_text
from .snapshot import FACTS_VERSION, Facts
from .strict import strict_problems

__all__ = [
    "FactsError",
    "decode_facts",
    "decode_hook",
    "encode_facts",
    "encode_hook",
    "facts_schema",
    "facts_schema_text",
]

OLDEST_FACTS_VERSION = 1
PROBLEM_LIMIT = 10  # problems that one error spells out


class FactsError(ValueError):
    """Data that are not usable facts. `problems` says why, each with the path of the field where there is one."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        shown = list(self.problems[:PROBLEM_LIMIT])
        if len(self.problems) > PROBLEM_LIMIT:
            shown.append(f"and {len(self.problems) - PROBLEM_LIMIT} more")
        super().__init__("; ".join(shown))


class _Header(msgspec.Struct):
    """What is read first, because a newer version may differ in everything else."""

    version: Any = None


def encode_hook(value: object) -> Any:
    """Make a dict of a `FrozenDict`: msgspec's hook for the types that it does not know."""
    if isinstance(value, FrozenDict):
        return thaw(value)
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def decode_hook(kind: type, value: object) -> Any:
    """Make a `FrozenDict` of a decoded mapping: msgspec's hook for the types that it does not know."""
    if kind is FrozenDict:
        if not isinstance(value, dict):
            raise ValueError(f"Expected `object`, got `{_json_type(value)}`")
        return freeze(value)
    raise NotImplementedError(f"cannot decode {kind.__name__}")


_ENCODER = msgspec.json.Encoder(enc_hook=encode_hook)
_DECODER = msgspec.json.Decoder(Facts, dec_hook=decode_hook)
_HEADER_DECODER = msgspec.json.Decoder(_Header)


def encode_facts(facts: Facts) -> bytes:
    """Return the facts as one line of JSON: the same facts, the same bytes."""
    try:
        return _ENCODER.encode(facts)
    except UnicodeEncodeError:
        return _ENCODER.encode(_readable(msgspec.to_builtins(facts, enc_hook=encode_hook)))


def _readable(value: Any) -> Any:
    """Plain data with every lone surrogate written as a backslash escape."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(item) for item in value]
    return value


def decode_facts(data: bytes, *, references: bool = True) -> Facts:
    """
    Return the facts that `data` holds. Raises `FactsError` with everything that is wrong, and where.

    Without `references` the numbers that point into tables are not checked: what was in memory is taken as it was.
    """
    try:
        _check_version(_HEADER_DECODER.decode(data).version)
        facts = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        raise FactsError([_located(str(error))]) from error
    except msgspec.DecodeError as error:
        raise FactsError([_not_json(str(error), data)]) from error
    except RecursionError as error:
        raise FactsError(["it is nested too deeply to be facts"]) from error
    # What shardlint wrote is the same again when encoded, and then there can be nothing unknown or twice in it.
    # Anything else (indented, written by hand or by another tool) is looked through, at some cost.
    if _ENCODER.encode(facts) != data.strip():
        problems = strict_problems(data, Facts)
        if problems:
            raise FactsError(problems)
    problems = reference_problems(facts) if references else []
    if problems:
        raise FactsError(problems)
    return facts


def _check_version(version: object) -> None:
    if version is None:
        raise FactsError([f"it has no version, so it is not a facts file (expected version {FACTS_VERSION})"])
    if type(version) is not int:
        raise FactsError([f"version: expected an integer, got {version!r}"])
    if version > FACTS_VERSION:
        raise FactsError(
            [f"facts file is version {version}, this shardlint reads up to {FACTS_VERSION}; upgrade shardlint"]
        )
    if version < OLDEST_FACTS_VERSION:
        raise FactsError(
            [f"facts file is version {version}, this shardlint reads {OLDEST_FACTS_VERSION} to {FACTS_VERSION}"]
        )


def _located(text: str) -> str:
    """`model.tensors[0].fqn: expected str, got int` from msgspec's "Expected `str`, got `int` - at `$...`"."""
    what, _, path = text.partition(" - at `$")
    what = what.replace("`", "")
    path = path.rstrip("`").lstrip(".") or "the top level"
    return f"{path}: {what[:1].lower()}{what[1:]}"


def _not_json(text: str, data: bytes) -> str:
    if not data.strip():
        return "it is empty, expected facts as JSON"
    if "truncated" in text:
        return f"it is cut off: the JSON ends after {len(data)} bytes before its last bracket is closed"
    found = re.search(r"\(byte (\d+)\)", text)
    if found and re.match(rb"-?(?:NaN|Infinity)", data[int(found[1]) :]):
        return f"NaN and Infinity are no JSON (byte {found[1]}); facts keep them as texts"
    if found:
        line = data.count(b"\n", 0, int(found[1])) + 1
        return f"it is not JSON: {text.removeprefix('JSON is malformed: ')}, line {line}"
    return f"it is not JSON: {text}"


def _json_type(value: object) -> str:
    names = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str", list: "array"}
    return names.get(type(value), type(value).__name__)
