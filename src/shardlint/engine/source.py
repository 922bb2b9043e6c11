"""Where a setting stands: a place in a file, a flag, or a default."""

from __future__ import annotations

from attrs import frozen


@frozen
class SettingSource:
    """
    A place in a file (`line` and `column` from 1, 0 when unknown), or just `text`: a flag or `default`.

    For a place in a file, `text` is the dotted key of the setting. `str()` gives `shardlint.yaml:7`, or the text.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    text: str = ""

    def __str__(self) -> str:
        if not self.file:
            return self.text or "default"
        return f"{self.file}:{self.line}" if self.line else f"{self.file}: {self.text}"


DEFAULT = SettingSource(text="default")
