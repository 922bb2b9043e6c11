"""Ctrl-C and SIGTERM while weights are compared: end early, with a report that says so."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from attrs import define, field

PASSED_ON_SECONDS = 2.0
"""A launcher passes on the signal that a terminal has given to everybody: so soon it does not count as a second one."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@define
class Interruption:
    """
    Turns a first SIGINT or SIGTERM into a wish to end early, which `asked` tells, from `watch` to the end of the block.

    A second one, some seconds later, raises `KeyboardInterrupt` at once. `received` is the number of the first, 0
    without one. Outside the main thread it does nothing.
    """

    received: int = 0
    _at: float = 0.0
    _before: dict[int, Any] = field(factory=dict)

    def __enter__(self) -> Interruption:
        return self

    def watch(self) -> None:
        """Take the signals from now on."""
        if not self._before and threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in _SIGNALS}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.received != 0

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received and now - self._at > PASSED_ON_SECONDS:
            raise KeyboardInterrupt
        if not self.received:
            self.received, self._at = number, now
