"""Names and what one does with them: order, globs over FQN segments, nearest candidates, collapsing, printing."""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from typing import Any

_NUMBER = re.compile(r"[+-]?[0-9.]+(?:e[+-]?[0-9]+)?|[+-]?inf|nan")
_DIGITS = re.compile(r"([0-9]+)")
_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z")
_CLASS = re.compile(r"\[!?\]?[^\]]*\]")
_SEGMENTS = r"(?:[^.]*\.)*"

ROOT = "<root>"
"""How messages and evidence call the root module, whose FQN is empty."""

_Template = tuple[str | None, ...]  # the segments of a name, None for an index


@functools.lru_cache(maxsize=65_536)
def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that orders numbers as numbers: `layers.2` before `layers.10`. Equal only for equal names."""
    parts = _DIGITS.split(name)
    # Numbers compare by length, then as text: no limit on the digits that a hostile name may have.
    keys = [_number_key(part) if index % 2 else (0, 0, part) for index, part in enumerate(parts)]
    return (*keys, (-1, 0, name))


def _number_key(digits: str) -> tuple[int, int, str]:
    significant = digits.lstrip("0")
    return (1, len(significant), significant)


@functools.lru_cache(maxsize=4096)
def compile_glob(pattern: str) -> re.Pattern[str]:
    """
    Compile a glob over dotted names, matched segment by segment, case-sensitively.

    `**` as a whole segment stands for any number of segments, none included, so `a.**` covers `a` and everything
    below it. Within a segment `*` is any text, `?` one character, `[abc]`, `[a-z]` and `[!a]` a character of a set;
    none of them ever matches a dot. A special character is taken literally in brackets: `[*]`. A dot always
    separates segments, also within brackets. Matching takes time polynomial in the length, whatever the pattern.
    """
    return re.compile(rf"\A{_translate(pattern)}\Z", re.DOTALL)


def _translate(pattern: str) -> str:
    head, *middle = _blocks(pattern)
    if not middle:
        return head
    *between, tail = middle
    # The leftmost place of a block between two `**` is as good as any later one: atomic, so nothing is tried twice.
    parts = ([head] if head else []) + [rf"(?>{_SEGMENTS}?{block}(?![^.]))" for block in between if block]
    if tail:
        return r"\.".join([*parts, _SEGMENTS + tail])
    return r"\.".join(parts) + r"(?:\..*)?" if parts else ".*"


def _blocks(pattern: str) -> list[str]:
    """The regular expressions of the runs of segments before, between and after each `**`."""
    blocks: list[list[str]] = [[]]
    for segment in pattern.split("."):
        if segment == "**":
            blocks.append([])
        else:
            blocks[-1].append(_segment(segment))
    if len(blocks) == 1:
        return [r"\.".join(blocks[0])]
    return [r"\.".join(block) if block != [""] else "(?![^.])" for block in blocks]


def _segment(segment: str) -> str:
    """The regular expression of one segment; the leftmost match of a part between two `*` suffices."""
    head, *rest = ["".join(_characters(part)) for part in _split_stars(segment)]
    if not rest:
        return head
    *between, tail = rest
    return head + "".join(f"(?>[^.]*?{part})" for part in between if part) + "[^.]*" + tail


def _split_stars(segment: str) -> Iterator[list[str]]:
    """The tokens (characters and bracket classes) between the stars of a segment."""
    part: list[str] = []
    at = 0
    while at < len(segment):
        found = _CLASS.match(segment, at)
        token = found.group() if found else segment[at]
        at += len(token)
        if token == "*":
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _characters(tokens: Iterable[str]) -> Iterator[str]:
    for token in tokens:
        if token == "?":
            yield "[^.]"
        elif len(token) > 1:
            yield r"(?!\.)" + translate(token)[len("(?s:") : -len(r")\Z")]
        else:
            yield re.escape(token)


def glob_matches(pattern: str, name: str) -> bool:
    """Whether the segment glob `pattern` matches the dotted `name` (see `compile_glob`)."""
    return compile_glob(pattern).match(name) is not None


def closest(name: str, candidates: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """The candidates that look most like `name`, best first."""
    return tuple(difflib.get_close_matches(name, list(candidates), n=limit, cutoff=0.6))


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """` (did you mean 'x'?)` or an empty string."""
    near = closest(name, candidates, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 rule`, `2 rules`, `12,000 rules`: the one way in which messages and reports count things."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Iterable[str], limit: int = 8) -> str:
    """`a, b, c and 4 more`: the first of the names as they come, each once, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - limit
    return ", ".join(distinct[:limit]) + (f" and {more} more" if more > 0 else "")


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """The names in natural order, each once."""
    return tuple(sorted(set(names), key=natural_key))


def joined(prefix: str, name: str) -> str:
    """`prefix.name`, or `name` below the root, whose prefix is empty."""
    return f"{prefix}.{name}" if prefix else name


def below(name: str, prefix: str) -> bool:
    """Whether `name` is `prefix` or lies below it; everything lies below the root, whose name is empty."""
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def owner_of(fqn: str) -> str:
    """The module that holds the tensor `fqn`, as findings name it: its FQN, `<root>` for the root."""
    return fqn.rpartition(".")[0] or ROOT


def first_line(error: BaseException, limit: int = 200, *, kind: bool = False) -> str:
    """
    The first line of what the error says, of at most `limit` characters; its type's name when it says nothing.

    With `kind` the type's name stands before it: `ValueError: bad size`.
    """
    name = type(error).__name__
    text = (str(error).splitlines() or [""])[0][:limit]
    if not text:
        return name
    return f"{name}: {text}" if kind else text


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
    """
    The name with every segment that is an index replaced by `*`: names with the same pattern may be collapsed.

    An index is a decimal number without leading zeros (of at most 18 digits), so that collapsing loses nothing.
    """
    return ".".join("*" if _INDEX.match(part) else part for part in name.split("."))


def collapse(names: Sequence[str]) -> str:
    """
    One name for many of the same pattern: `layers.{0..31}.mlp.up.weight`.

    A segment that varies becomes the ranges of its numbers; the names must share `pattern_of`. The text stands for
    the product of all its ranges: where the names are not all of that product, use `collapse_exactly`.
    """
    columns = list(zip(*(name.split(".") for name in names), strict=True))
    parts = [column[0] if len(set(column)) == 1 else "{" + ranges(map(int, column)) + "}" for column in columns]
    return ".".join(parts)


def collapse_exactly(names: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """
    Group names into products of index ranges: `(collapsed text, its names)`, every name in exactly one group.

    Layers that lack an expert stand apart: 32 layers of 8 experts without layer 3's expert 5 give
    `layers.{0..2,4..31}.experts.{0..7}` and `layers.3.experts.{0..4,6..7}`. Groups come in natural order.
    """
    families: dict[_Template, list[tuple[int, ...]]] = {}
    for name in sorted(set(names), key=natural_key):
        parts = name.split(".")
        template = tuple(None if _INDEX.match(part) else part for part in parts)
        families.setdefault(template, []).append(tuple(int(part) for part in parts if _INDEX.match(part)))
    groups = [
        (_filled(template, [_braced(axis) for axis in axes]), _members(template, axes))
        for template, rows in families.items()
        for axes in _products(rows)
    ]
    return tuple(sorted(groups, key=lambda group: natural_key(group[1][0])))


def _products(rows: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], ...]]:
    """Cover rows of equal length exactly with products of axes: first indices with equal remainders are merged."""
    if not rows or not rows[0]:
        return [()] if rows else []
    remainders: dict[int, list[tuple[int, ...]]] = {}
    for first, *rest in rows:
        remainders.setdefault(first, []).append(tuple(rest))
    merged: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for first, rest_rows in remainders.items():
        merged.setdefault(tuple(rest_rows), []).append(first)
    return [(tuple(firsts), *axes) for rest_rows, firsts in merged.items() for axes in _products(rest_rows)]


def _filled(template: _Template, indices: Iterable[str]) -> str:
    values = iter(indices)
    return ".".join(next(values) if part is None else part for part in template)


def _braced(axis: Sequence[int]) -> str:
    return str(axis[0]) if len(axis) == 1 else "{" + ranges(axis) + "}"


def _members(template: _Template, axes: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    return tuple(_filled(template, map(str, row)) for row in itertools.product(*axes))


def printable(text: str) -> str:
    r"""
    The text as it may be shown in a terminal or a log line: on one line, nothing invisible, nothing that acts.

    Control characters, terminal escapes, line ends, bidirectional and zero-width marks, and lone surrogates become
    `\n`, `\x1b`, `\u202e` and the like; every other character stays.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def csv_cell(value: Any) -> Any:
    """The value; a text without control characters, and such that no spreadsheet takes it for a formula."""
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(shown) else shown


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
