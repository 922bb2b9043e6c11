"""Lines within a width: paragraphs, labels, tables, plain values."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..names import printable

_BULLET = re.compile(r"(?:[-*]|\d+\.) +")
_NARROWEST = 20
MOST_ITEMS = 8


def wrap(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Wrap one paragraph; words longer than the width stay whole, so that names can be copied."""
    later = indent if hanging is None else hanging
    return textwrap.wrap(
        " ".join(printable(word) for word in text.split()),
        max(width, len(later) + _NARROWEST),
        initial_indent=indent,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def paragraphs(text: str, width: int, indent: str = "") -> list[str]:
    """Lay out Markdown: paragraphs and list items are reflowed, fenced and indented blocks are kept as they are."""
    lines: list[str] = []
    for block in _blocks(text):
        if block[0].startswith(("```", "    ")):
            kept = [line for line in block if not line.startswith("```")]
            lines += [indent + "    " + printable(line) for line in textwrap.dedent("\n".join(kept)).split("\n")]
        elif block == [""]:
            lines.append("")
        else:
            bullet = _BULLET.match(block[0])
            hanging = indent + " " * (bullet.end() if bullet else 0)
            lines += wrap(" ".join(block), width, indent, hanging)
    return lines


def _blocks(text: str) -> Iterator[list[str]]:
    """Blocks of lines that belong together; an empty line is a block of its own."""
    block: list[str] = []
    fenced = False
    for line in text.strip("\n").split("\n"):
        fence = line.startswith("```")
        starts = fence != fenced if fence else not fenced and (not line.strip() or _BULLET.match(line) is not None)
        if starts and block and not (fence and fenced):
            yield block
            block = []
        if not line.strip() and not fenced:
            yield [""]
            continue
        block.append(line)
        fenced = fenced != fence
        if fence and not fenced:
            yield block
            block = []
    if block:
        yield block


def labelled(label: str, text: str, width: int, indent: str, column: int) -> list[str]:
    """`text` beside `label`, its lines aligned at `column` columns after the indent."""
    lines = paragraphs(text, width, indent + " " * column) or [""]
    head = indent + label.ljust(column)
    return [(head + lines[0][len(head) :]).rstrip(), *lines[1:]]


def table(rows: Sequence[Sequence[str]], width: int, indent: str = "", gap: int = 2) -> list[str]:
    """Columns as wide as their content; the last one is wrapped within what is left of `width`."""
    if not rows:
        return []
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    lines: list[str] = []
    for row in rows:
        head = indent + "".join(cell.ljust(size + gap) for cell, size in zip(row[:-1], widths, strict=True))
        tail = wrap(row[-1], width, " " * len(head))
        lines.append((head + (tail[0][len(head) :] if tail else "")).rstrip())
        lines += tail[1:]
    return lines


def plain(value: Any, most: int = MOST_ITEMS, empty: str = "none") -> str:
    """
    A plain value in one line; of a long sequence or mapping the first `most` items and how many more there are.

    `empty` is what an empty sequence is called.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return "{" + _some([f"{printable(key)}: {plain(element)}" for key, element in value.items()], most) + "}"
    if isinstance(value, (list, tuple)):
        if not value:
            return empty
        joined = _some([plain(element, empty=empty) for element in value], most)
        numbers = all(isinstance(element, (int, float)) for element in value)
        return f"[{joined}]" if numbers else joined
    return {None: "none", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def _some(items: list[str], most: int) -> str:
    more = len(items) - most
    shown = items if more <= 1 else items[:most]
    return ", ".join(shown) + (f", ... {more} more" if more > 1 else "")
