"""Colours, and text that is safe to show: control characters never reach a terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TextIO

from attrs import frozen

from ..rule import Severity

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_SEVERITY = {Severity.ERROR: ("bold", "red"), Severity.WARNING: ("bold", "yellow"), Severity.INFO: ("bold", "blue")}


@frozen
class Style:
    """Paints text when `color` is set, and leaves it alone when not."""

    color: bool = False

    def paint(self, text: str, *names: str) -> str:
        """`text` in the named styles (bold, dim, red, ...)."""
        if not (self.color and names and text):
            return text
        return f"\x1b[{';'.join(_CODES[name] for name in names)}m{text}\x1b[0m"

    def severity(self, severity: Severity, text: str | None = None) -> str:
        """`text` (the severity's own name when None) in the colour of `severity`."""
        return self.paint(severity.value if text is None else text, *_SEVERITY[severity])


def wants_color(stream: TextIO, choice: str = "auto", environment: Mapping[str, str] | None = None) -> bool:
    """
    Whether to colour what goes to `stream`. `choice` is auto, always or never and beats the environment.

    For auto a non-empty NO_COLOR says no, then a non-empty FORCE_COLOR other than 0 says yes, then terminals that are
    not dumb are coloured.
    """
    if choice != "auto":
        return choice == "always"
    known = os.environ if environment is None else environment
    if known.get("NO_COLOR"):
        return False
    if known.get("FORCE_COLOR"):
        return known["FORCE_COLOR"] != "0"
    return stream.isatty() and known.get("TERM") != "dumb"


def encodable(value: Any) -> Any:
    """A plain value in whose strings lone surrogates (names that are not UTF-8) are escaped, ready for any encoder."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(element) for key, element in value.items()}
    return [encodable(element) for element in value] if isinstance(value, (list, tuple)) else value
