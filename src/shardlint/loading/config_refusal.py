"""What Transformers says when it refuses a configuration, in words: which field, what was expected, what was found."""

from __future__ import annotations

import difflib
import dis
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..introspect.plain import encodable
from .loader import ConfigRefusedError

_FIELD = re.compile(r"\bfield '(?P<name>\w+)'", re.IGNORECASE)
_LONGEST = 300  # characters
_MOST_NAMED = 12


def refusal(error: Exception, config: Mapping[str, Any]) -> ConfigRefusedError | None:
    """
    Return `error`, which building from the plain values `config` raised, as a refusal that names the field.

    None when nothing shows that the configuration is at fault: an attribute that a release lacks, a call that it does
    not take, whatever went wrong between the libraries, is no fault of the user's file.
    """
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        found = _unknown_value(error.args[0], config)
        if found is not None:
            return found
    if not (_is_stated(error) or _is_evident(error, config)):
        return None
    cause = error.__cause__ if type(error).__name__.startswith("StrictDataclass") else None
    text = encodable(" ".join(str(cause or error).split()))
    match = _FIELD.search(text)
    if match:
        name = match["name"]
        detail = re.sub(rf"^field '{name}'\s+", "", text, flags=re.IGNORECASE)
        return ConfigRefusedError(_short(detail), _path(config, name, text))
    kind = "" if cause is not None else f"{type(error).__name__}: "
    return ConfigRefusedError(_short(f"{kind}{text}"))


def _is_stated(error: Exception) -> bool:
    """Whether a library raised it on purpose: by a statement, to say that a value will not do."""
    if type(error).__name__.startswith("StrictDataclass"):
        return True
    if not isinstance(error, (ValueError, TypeError, AssertionError, LookupError)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or str(trace.tb_frame.f_globals.get("__name__", "")).startswith("shardlint"):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _is_evident(error: Exception, config: Mapping[str, Any]) -> bool:
    """Whether a number of the configuration makes it: a zero that is divided by, a size below zero that is named."""
    numbers = [value for _, value in _leaves(config) if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if isinstance(error, ZeroDivisionError):
        return 0 in numbers
    words = set(re.findall(r"-\d+", str(error))) if isinstance(error, RuntimeError) else set()
    return any(str(number) in words for number in numbers if number < 0)


def _short(text: str) -> str:
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _unknown_value(value: str, config: Mapping[str, Any]) -> ConfigRefusedError | None:
    """Say of a name that a table of Transformers lacks which field gave it, and what the table has."""
    paths = [path for path, found in _leaves(config) if found == value]
    if not paths:
        return None
    known = _known(paths[0])
    shown = difflib.get_close_matches(value, known, 3, 0.5) if len(known) > _MOST_NAMED else known
    hint = f"; expected {'for example ' if shown != known else ''}{', '.join(shown)}" if shown else ""
    return ConfigRefusedError(f"Transformers knows no {encodable(value)!r:.60}{hint}", paths[0])


def _known(path: str) -> list[str]:
    """Return the names that Transformers knows for a field, where it keeps a table of them."""
    leaf = path.rpartition(".")[2]
    try:
        if leaf in ("rope_type", "type"):
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            return sorted({"default", *ROPE_INIT_FUNCTIONS})
        if "act" in leaf:
            from transformers.activations import ACT2FN

            return sorted(ACT2FN)
    except ImportError:
        pass
    return []


def _path(config: Mapping[str, Any], name: str, text: str) -> str:
    """Return the dotted path of the field `name`: where there are several, the one whose value the text quotes."""
    found = [(path, value) for path, value in _leaves(config) if path.rpartition(".")[2] == name]
    quoted = [path for path, value in found if f"value: {value!r}" in text]
    return next(iter(quoted or [path for path, _ in found]), name)


def _leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield f"{prefix}{key}", value
            yield from _leaves(value, f"{prefix}{key}.")
