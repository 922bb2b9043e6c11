"""What is wrong with a configuration file, reported with the place, the line and a caret."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from ..names import printable

_WIDTH = 100
_SHOWN = 50
_LONG = 600


@frozen(kw_only=True)
class ConfigProblem:
    """
    One thing that is wrong: `file:line:column: key: expected ..., got ...`.

    `line` and `column` count from 1 and are 0 when the place is not known; `source_line` is the text of that line.
    """

    file: str
    line: int = 0
    column: int = 0
    key: str = ""
    message: str
    source_line: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        parts = [place, self.key, self.message] if self.key else [place, self.message]
        return ": ".join(_cut(printable(part)) for part in parts)

    def render(self) -> str:
        """The problem, and below it the line with a caret when the place is known."""
        if not self.line:
            return str(self)
        start = max(0, self.column - 1 - _WIDTH // 2) if len(self.source_line) > _WIDTH else 0
        number = str(self.line)
        shown = printable(self.source_line[start : start + _WIDTH].replace("\t", " "))
        before = printable(self.source_line[start : self.column - 1].replace("\t", " "))
        return f"{self}\n  {number} | {shown}\n  {' ' * len(number)} | {' ' * len(before)}^"


def _cut(text: str) -> str:
    """The text without its middle when it is very long: a key may have any length."""
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]}...{text[-_LONG // 2 :]}"


class ConfigError(Exception):
    """Configuration that cannot be used. `problems` lists everything that is wrong, in the order of the files."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        shown = [problem.render() for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            shown.append(f"and {len(self.problems) - _SHOWN} more problems")
        super().__init__("\n".join(shown))
