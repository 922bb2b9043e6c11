"""The options of heavy rules, and the progress that they show while they read weights."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click
from attrs import evolve, frozen

from ..config.schema import CAST_DTYPES
from .base import Problem, option
from .options import stacked

if TYPE_CHECKING:
    from ..config.settings import CheckpointSettings
    from ..facts import Facts
    from ..target import LiveTarget

_SIZE = re.compile(r"([0-9]+)([KMGT]?)I?B?\Z", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
SHOW_SECONDS = 0.2


class FiniteRange(click.FloatRange):
    """A number in a range. NaN, which compares with nothing and so passes any range, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"expected a number, got {value!r}", param, ctx)
        return number


class SizeType(click.ParamType):  # type: ignore[type-arg] # generic in newer versions of click only
    """A number of bytes: 512M, 2G, 1048576."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.match(value.strip())
        if not match or not int(match[1]):
            self.fail(f"expected a size such as 512M or 2G, got {value!r}", param, ctx)
        return int(match[1]) << _UNITS[match[2].upper()]


weight_options: Callable[[Any], Any] = stacked(
    option(
        "Weights",
        "--reference",
        type=click.Path(),
        metavar="DIR",
        help="Compare the checkpoint TARGET with this one, element by element; implies --heavy.",
    ),
    option(
        "Weights",
        "--allow-cast",
        multiple=True,
        type=click.Choice(CAST_DTYPES),
        metavar="DTYPE",
        help="Beside --reference: tensors may have this dtype on purpose where the reference has another one. "
        "Repeatable.",
    ),
    option(
        "Weights",
        "--sample",
        type=FiniteRange(0.0, 1.0, min_open=True),
        default=1.0,
        metavar="FRACTION",
        help="Look at this fraction of the weights only; implies --heavy. A sample never passes: it proves nothing "
        "about the rest.",
    ),
    option(
        "Weights", "--max-memory", type=SizeType(), metavar="SIZE", help="Memory that heavy rules may use: 512M, 2G."
    ),
    option(
        "Weights",
        "--replicas",
        type=click.Choice(["digest", "full"]),
        metavar="MODE",
        help="Replicas in a job: digest (one reads the checkpoint, the others compare digests with it) or full (each "
        "reads it). [default: that of the configuration, else digest]",
    ),
    option(
        "Weights",
        "--weight-report",
        type=click.Path(),
        metavar="DIR",
        help="Write tensors.csv, summary.json and a file of every rank there; implies --heavy.",
    ),
)


@frozen(kw_only=True)
class WeightChoices:
    """What the user chose of the options above."""

    reference: str | None = None
    allow_cast: tuple[str, ...] = ()
    sample: float = 1.0
    max_memory: int | None = None
    weight_report: str | None = None
    replicas: Literal["digest", "full"] | None = None

    @property
    def asks(self) -> bool:
        """Whether a choice makes sense only when weights are compared, so that it asks for that."""
        return self.reference is not None or self.sample < 1.0 or self.weight_report is not None

    def asked(self) -> dict[str, str]:
        """What the ranks of a job must be asked alike, as texts."""
        from ..ranks.rows import text_of

        return {
            "--reference": text_of(bool(self.reference)),
            "--sample": str(self.sample),
            "--weight-report": text_of(bool(self.weight_report)),
            "--replicas": self.replicas or "as the rule's options say",
        }

    def check_report(self) -> None:
        """
        Find out before anything is built whether the reports can be written.

        Raises `Problem` when the folder cannot be made or nothing can be written into it.
        """
        if self.weight_report is None:
            return
        from ..weights.report_files import check_writable

        try:
            check_writable(Path(self.weight_report).expanduser())
        except OSError as error:
            why = error.strerror or error
            raise Problem(f"--weight-report {self.weight_report}: expected a folder to write to: {why}") from error

    def apply(
        self,
        facts: Facts,
        live: LiveTarget | None,
        settings: CheckpointSettings,
        rank_timeout: float = 0.0,
    ) -> LiveTarget | None:
        """
        The live target with these limits.

        Raises `click.UsageError` when two checkpoints, or a model and its checkpoint, are needed and not there.
        """
        from ..target import LiveTarget

        has_model = live is not None and live.model is not None
        if self.allow_cast and self.reference is None:
            raise click.UsageError("--allow-cast is about two checkpoints: it needs --reference")
        if self.reference is not None:
            if has_model or facts.checkpoint is None:
                raise click.UsageError("--reference compares two checkpoints: TARGET must be a checkpoint too")
            live = LiveTarget(
                checkpoint=Path(facts.checkpoint.path),
                reference=Path(self.reference).expanduser(),
                allow_cast=(*settings.allow_cast, *self.allow_cast),
                fusions=settings.fusions,
            )
        elif self.asks and (live is None or live.checkpoint is None or not has_model):
            option = "--sample" if self.sample < 1.0 else "--weight-report"
            raise click.UsageError(
                f"{option} is about comparing weights: expected a model and its --checkpoint, or a checkpoint and its "
                "--reference"
            )
        if live is None:
            return None
        return evolve(
            live,
            sample=self.sample,
            max_memory=self.max_memory,
            reports=None if self.weight_report is None else Path(self.weight_report).expanduser().absolute(),
            replicas=self.replicas,
            rank_timeout=rank_timeout or None,
        )


@contextmanager
def shown_progress(live: LiveTarget | None, stream: TextIO | None = None) -> Iterator[LiveTarget | None]:
    """
    Give the live target a line of progress on a terminal: share, rate, time left. It is wiped at the end.

    Of the ranks of a job only the first one shows it.
    """
    stream = stream or sys.stderr
    if live is None or not stream.isatty() or os.environ.get("RANK", "0") != "0":
        yield live
        return
    line = ProgressLine(stream)
    try:
        yield evolve(live, progress=line.show)
    finally:
        line.wipe()


class ProgressLine:
    """One line that is written over: `weights  42 %  1.3 GB/s  0:12 left`."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._shown = float("-inf")
        self._width = 0

    def show(self, done: int, total: int, what: str) -> None:
        """Write the line again, at most five times a second."""
        now = self._clock()
        if now - self._shown < SHOW_SECONDS and done < total:
            return
        self._shown = now
        rate = done / max(now - self._started, 1e-9)
        left = int((total - done) / rate) if rate else 0
        share = 100 * done // total if total else 100
        text = f"{what}  {share} %  {rate / 1e9:.1f} GB/s  {left // 60}:{left % 60:02d} left"
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def wipe(self) -> None:
        """Leave no trace of the line."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
