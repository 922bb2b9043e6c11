"""A callback for the Transformers `Trainer`: trace the first optimizer steps, then lint with the trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..tracing import Trace, trace

if TYPE_CHECKING:
    TrainerCallback = object  # Transformers is optional, and has no types that a strict check could use
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError("shardlint.integrations.tracing needs Transformers: pip install 'shardlint[hf]'") from error


class TraceCallback(TrainerCallback):
    """
    Trace the first `steps` optimizer steps, micro-steps included, and lint when they are done.

    In a distributed job every rank lints, and gets one report. With `raises` a report with errors ends the training
    with a `LintError`; else it is kept in `report` and shown. `arguments` are those of `shardlint.lint`.
    """

    def __init__(self, *, steps: int = 1, raises: bool = True, **arguments: Any) -> None:
        self.steps = steps
        self.raises = raises
        self.arguments = arguments
        self.report: Any = None
        self.trace: Trace | None = None
        self._running: Trace | None = None
        self._done = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the trace before the first micro-step."""
        if self._running is None and self.trace is None:
            contract = self.arguments.get("contract")
            self._running = trace(kwargs.get("model"), kwargs.get("optimizer"), contract=contract)
            self._running.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the trace after the last step that is wanted, and lint."""
        if self._running is None:
            return
        self._done += 1
        if self._done < self.steps:
            return
        self._stop()
        from ..api import lint

        arguments = {"optimizer": kwargs.get("optimizer"), **self.arguments}
        self.report = lint(kwargs.get("model"), trace=self.trace, **arguments)
        if self.raises:
            self.report.raise_for_errors()
        elif self.report.findings:
            from ..report import ReportOptions, write_text

            write_text(self.report, sys.stderr, ReportOptions())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take every hook away when the training was shorter than the trace."""
        if self._running is not None:
            self._stop()

    def _stop(self) -> None:
        assert self._running is not None
        self._running.__exit__(None, None, None)
        self.trace, self._running = self._running, None
