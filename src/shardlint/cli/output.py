"""Where output goes: standard output or files, the latter whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from attrs import Factory, field, frozen

from ..names import did_you_mean
from ..report import BUILTIN_REPORTERS, Report, Reporter, ReportOptions
from ..report.options import DEFAULT_WIDTH
from ..report.style import wants_color
from .base import Problem

if TYPE_CHECKING:
    from ..config import Settings
    from ..plugins.registry import Registry

_NARROWEST = 40


@frozen
class Output:
    """
    One report to write: the format's name, its reporter, and the file (None: standard output).

    `path` is as it was named, `file` the same from the root, since a builder or a rule may leave the folder.
    """

    name: str
    reporter: Reporter
    path: Path | None
    file: Path | None = field(
        init=False, default=Factory(lambda output: output.path and output.path.absolute(), takes_self=True)
    )


def outputs_of(texts: Sequence[str], settings: Settings, reporters: Mapping[str, Reporter]) -> tuple[Output, ...]:
    """What `--output-format` asks for, else the configuration, else text. Raises `Problem` as `parse_outputs` does."""
    if texts or not settings.output_format:
        return parse_outputs(texts or ("text",), reporters)
    return parse_outputs(settings.output_format, reporters, where_set(settings))


def where_set(settings: Settings) -> str:
    """Where the configuration names output formats: `shardlint.yaml:2:18: report.output-format`."""
    source = settings.source("report.output-format")
    return f"{source}:{source.column}: report.output-format" if source.line else "report.output-format"


def parse_outputs(
    texts: Sequence[str], reporters: Mapping[str, Reporter], where: str = "--output-format"
) -> tuple[Output, ...]:
    """
    Understand every `NAME[:FILE]`, which were written at `where`.

    Raises `Problem` for an unknown format, for two formats that both go to standard output or to one file, and for a
    file that cannot be written (`check_writable`).
    """
    outputs: list[Output] = []
    for text in texts:
        name, colon, file = text.partition(":")
        if name not in reporters:
            valid = f"valid: {', '.join(sorted(reporters))}"
            raise Problem(f"{where}: no output format {name!r}{did_you_mean(name, reporters)}; {valid}")
        reporter = reporters[name]
        if colon and not file:
            raise Problem(f"{where} {text}: expected NAME or NAME:FILE, got no FILE after the colon")
        path = Path(file).expanduser() if file else None
        if path is not None:
            check_writable(path, f"{where} {text}")
        outputs.append(Output(name, reporter, path))
    _distinct(outputs)
    return tuple(outputs)


def check_writable(path: Path, what: str) -> None:
    """
    Raise `Problem`, which begins with `what`, for a file that could not be written when there is something to write.

    Asked before the work is done, so that nobody builds a model for an hour first.
    """
    folder = path.resolve().parent
    problem = ""
    if path.is_dir():
        problem = "a folder"
    elif not folder.is_dir():
        problem = f"no folder {str(path.parent)!r}"
    elif not os.access(folder if path.is_file() or not path.exists() else path, os.W_OK):
        problem = f"no permission to write in {str(path.parent)!r}"
    if problem:
        raise Problem(f"{what}: expected a file to write, found {problem}")


def reporters_of(registry: Registry) -> dict[str, Reporter]:
    """Output formats by name: the built-in ones, which no pack may replace, and those of packs."""
    return {**registry.reporters, **BUILTIN_REPORTERS}


def _distinct(outputs: Sequence[Output]) -> None:
    seen: dict[Path | None, str] = {}
    for output in outputs:
        key = None if output.path is None or _is_stdout(output.path) else output.path.resolve()
        if key in seen:
            where = f"the file {str(output.path)!r}" if output.path and key else "standard output"
            raise Problem(
                f"the output formats {seen[key]} and {output.name} both go to {where}; "
                "give all but one of them a file of its own: --output-format NAME:FILE"
            )
        seen[key] = output.name


def _is_stdout(path: Path) -> bool:
    """Whether a file of this name is where standard output goes: `/dev/stdout`, or what it was redirected to."""
    try:
        return str(path) != os.devnull and os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False


def write_outputs(report: Report, outputs: Sequence[Output], options: ReportOptions) -> None:
    """Write every report; when all go to files, standard output still gets the line that sums up."""
    for output in outputs:
        if output.file is None:
            _report(output, report, sys.stdout, options)
        else:
            from attrs import evolve

            plain = evolve(options, color=False, width=DEFAULT_WIDTH, terminal=False)
            with atomic_file(output.file) as stream:
                _report(output, report, stream, plain)
    if all(output.path is not None for output in outputs):
        from ..report.style import Style
        from ..report.summary import last_line

        sys.stdout.write(last_line(report, Style(options.color), options))


def _report(output: Output, report: Report, stream: TextIO, options: ReportOptions) -> None:
    """Run one reporter. What a pack's prints is not part of any report, and its `sys.exit` does not decide the run."""
    text = io.StringIO()  # not the stream itself: a pack might close it
    try:
        with stdout_to_stderr():
            output.reporter(report, text, options)
        whole = text.getvalue()
    except (OSError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise Problem(f"the output format {output.name!r} failed: {type(error).__name__}: {error}") from error
    stream.write(whole)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """
    Send to standard error what Python prints and what libraries and child processes write to descriptor 1.

    Standard output belongs to the report: whatever runs foreign code (builders, packs, rules) runs in here.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        for stream in (sys.stderr, sys.__stdout__):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()  # type: ignore[union-attr] # None where the caller closed it
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[TextIO]:
    """
    A text stream whose content becomes the file `path` when the block ends, and leaves no trace when it raises.

    What is not a regular file (a pipe, `/dev/stderr`) is written directly. Raises `Problem` when it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8", errors="backslashreplace") as stream:
                yield stream
            return
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
    except OSError as error:
        raise Problem(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream
        Path(name).chmod(_mode(path))
        Path(name).replace(path.resolve())
    except OSError as error:
        raise Problem(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


def _mode(path: Path) -> int:
    """The permissions of the file that is replaced, else those that a new file gets."""
    if path.exists():
        return path.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def write_whole(path: str, text: str) -> None:
    """Write `text` to the file `path`, whole or not at all; `-` is standard output."""
    if path == "-":
        sys.stdout.write(text)
        return
    with atomic_file(Path(path).expanduser()) as stream:
        stream.write(text)


def terminal_width() -> int:
    """Columns to write in: COLUMNS or the terminal's, 100 when neither is known."""
    return max(_NARROWEST, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns)


def report_options(
    *,
    color: str = "auto",
    verbosity: int = 0,
    collapse: bool = True,
    show_suppressed: bool = False,
    timing: bool = False,
) -> ReportOptions:
    """The options for standard output."""
    return ReportOptions(
        width=terminal_width(),
        color=wants_color(sys.stdout, color),
        verbosity=verbosity,
        collapse=collapse,
        show_suppressed=show_suppressed,
        timing=timing,
        terminal=sys.stdout.isatty(),
    )
