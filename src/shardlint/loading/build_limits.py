"""Limits of time and memory while somebody else's configuration decides what is built."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

CPU_SECONDS = 20.0
"""Processor time for one architecture; the largest that Transformers knows takes a fraction of it."""

MEMORY = 4 * 2**30
"""Bytes by which the process may grow meanwhile; a model on meta holds no weights."""


class BuildGivenUp(BaseException):
    """Building took longer than `CPU_SECONDS`."""


@contextlib.contextmanager
def build_limits() -> Iterator[None]:
    """
    Bound processor time and memory of the block. Raises `BuildGivenUp` or, from an allocation, `MemoryError`.

    Signals reach only the main thread, and a limit of memory holds for every thread: beside others nothing is bounded,
    since somebody's training must not fail because shardlint looks on.
    """
    if threading.current_thread() is not threading.main_thread() or threading.active_count() > 1:
        yield
        return
    with _time(CPU_SECONDS), memory_limit(MEMORY):
        yield


def _give_up(number: int, frame: FrameType | None) -> NoReturn:
    raise BuildGivenUp(f"more than {CPU_SECONDS:g} seconds of processor time")


@contextlib.contextmanager
def _time(seconds: float) -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, _give_up)
    timer = signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)  # again and again, should something swallow the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, *timer)
        signal.signal(signal.SIGPROF, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def memory_limit(growth: int) -> Iterator[None]:
    """Let the process grow by at most `growth` bytes in the block; beyond it allocations raise `MemoryError`."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    soft, hard = before
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):  # no Linux: its size is not known
        yield
        return
    wanted = pages * resource.getpagesize() + growth
    bounds = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(wanted, *bounds) if bounds else wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
