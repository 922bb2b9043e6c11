"""How a report is to be written: what every output format gets beside the report itself."""

from __future__ import annotations

from attrs import frozen

DEFAULT_WIDTH = 100


@frozen(kw_only=True)
class ReportOptions:
    """
    What the user asked for. `width` is in columns; `color` is decided already (terminal, NO_COLOR, `--color`).
    `terminal` says that the stream is one, so that long lines are better broken than left to it.

    `verbosity` is -1 for quiet, 0, or 1 and more for verbose. `collapse` joins findings that differ only in layer or
    expert numbers. A format may ignore what means nothing to it.
    """

    width: int = DEFAULT_WIDTH
    color: bool = False
    verbosity: int = 0
    collapse: bool = True
    show_suppressed: bool = False
    timing: bool = False
    terminal: bool = False

    @property
    def quiet(self) -> bool:
        """Whether nothing but the outcome was asked for."""
        return self.verbosity < 0

    @property
    def verbose(self) -> bool:
        """Whether everything was asked for."""
        return self.verbosity > 0
