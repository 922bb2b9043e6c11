"""Names and what one does with them: order, globs over FQN segments, nearest candidates, collapsing."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

_DIGITS = re.compile(r"([0-9]+)")
_INDEX = re.compile(r"[0-9]{1,18}\Z")  # not str.isdigit(), which takes superscripts that int() refuses


@functools.cache
def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that orders numbers as numbers: `layers.2` before `layers.10`."""
    parts = _DIGITS.split(name)
    return tuple(_number_key(part) if index % 2 else (0, 0, part) for index, part in enumerate(parts))


def _number_key(digits: str) -> tuple[int, int, str]:
    """Longer is larger: compared without `int()`, which refuses the thousands of digits of a hostile name."""
    stripped = digits.lstrip("0")
    return (1, len(stripped), stripped)


@functools.lru_cache(maxsize=4096)
def compile_glob(pattern: str) -> re.Pattern[str]:
    """
    Compile a glob over dotted names: `*` is one segment (or part of one), `**` any number of segments, none included.

    Within a segment `*`, `?` and `[...]` work as in `fnmatch`, case-sensitively.
    """
    pieces: list[str] = []
    segments = pattern.split(".")
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment == "**":
            pieces.append(r"(?:[^.]+(?:\.[^.]+)*)?" if last else r"(?:[^.]+\.)*")
        else:
            pieces.append(_segment(segment) + ("" if last else r"\."))
    text = "".join(pieces)
    if len(segments) > 1 and segments[-1] == "**":
        # `a.**` covers `a` itself too: the dot before an empty tail must be optional.
        head = "".join(pieces[:-1])
        text = head.removesuffix(r"\.") + r"(?:\.[^.]+)*" if segments[-2] != "**" else text
    return re.compile(rf"\A{text}\Z", re.DOTALL)


def _segment(segment: str) -> str:
    body = translate(segment).removeprefix("(?s:").removesuffix(r")\Z")
    return body.replace(".*", "[^.]*") if "*" in segment else body


def glob_matches(pattern: str, name: str) -> bool:
    """Whether the segment glob `pattern` matches the dotted `name`."""
    return compile_glob(pattern).match(name) is not None


def closest(name: str, candidates: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """The candidates that look most like `name`, best first."""
    return tuple(difflib.get_close_matches(name, list(candidates), n=limit, cutoff=0.6))


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """` (did you mean 'x'?)` or an empty string."""
    near = closest(name, candidates, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def ranges(numbers: Iterable[int]) -> str:
    """`0..3,7` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}..{high}" for low, high in runs)


def pattern_of(name: str) -> str:
    """The name with every index segment replaced by `*`: names with the same pattern may be collapsed."""
    return ".".join("*" if _INDEX.match(part) else part for part in name.split("."))


def collapse(names: Sequence[str]) -> str:
    """
    One name for many of the same pattern: `layers.{0..31}.mlp.up.weight`.

    A segment that varies becomes the ranges of its numbers; the names must share `pattern_of`.
    """
    columns = list(zip(*(name.split(".") for name in names), strict=True))
    parts = [column[0] if len(set(column)) == 1 else "{" + ranges(map(int, column)) + "}" for column in columns]
    return ".".join(parts)
