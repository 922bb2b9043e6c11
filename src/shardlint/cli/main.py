"""The command `shardlint`: finds the subcommand, turns what goes wrong into one message and an exit status."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn, TextIO

import click

from .._version import __version__
from .base import EXIT_INTERRUPTED, EXIT_OK, EXIT_PIPE, EXIT_UNTRUSTED, WIDEST_HELP, CommandGroup

COMMANDS = (
    "lint",
    "snapshot",
    "ownership",
    "rule",
    "rules",
    "packs",
    "config",
    "suppressions",
    "schema",
    "demo",
    "completion",
)
_THREAD_SECONDS = 2.0
_SETTINGS = {"max_content_width": WIDEST_HELP, "help_option_names": ["-h", "--help"]}


class _ClosedPipe(Exception):  # noqa: N818 - nobody's error: the reader has seen enough
    """Standard output was closed. click would make exit status 1 of it, which means findings."""


class _LazyGroup(CommandGroup):
    """Imports the module of a command when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"shardlint.cli.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ClosedPipe from error


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    click.echo(f"shardlint {__version__}")
    if ctx.params.get("verbose"):
        from ..versions import TRIED, installed_versions, limits, untried

        found = installed_versions()
        click.echo(f"python {sys.version.split()[0]}")
        for name, version in found.items():
            tried = f" (tried: {' to '.join(TRIED[name])})" if name in TRIED else ""
            click.echo(f"{name} {version}{tried}")
        for line in (*untried(found), *limits(found)):
            click.echo(f"limited: {line}")
    ctx.exit()


@click.group(cls=_LazyGroup, context_settings=_SETTINGS)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    is_eager=True,
    help="With --version: the versions of the libraries, and what they limit.",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli(verbose: bool) -> None:
    """
    Says what will go silently wrong with a built PyTorch model and its checkpoint, before the run starts.

    Exit status: 0 nothing at or above the fail level, 1 findings, 2 the run cannot be trusted (usage, configuration,
    a pack or rule that crashed, a target that cannot be read, a rule selected by name that was not evaluated).
    """
    if verbose:
        raise click.UsageError("--verbose before a command goes with --version; give it behind the command")


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: the entry point of the `shardlint` command."""
    status = main(sys.argv[1:] if arguments is None else list(arguments))
    _leave_threads(status)
    sys.exit(status)


def _leave_threads(status: int) -> None:
    """End the process at once when foreign code left threads that the interpreter would wait for, maybe for ever."""
    left = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    for thread in left:
        thread.join(_THREAD_SECONDS / len(left))
    if any(thread.is_alive() for thread in left):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM ends a run as Ctrl-C does: files are left whole, and the exit status says so."""
    raise KeyboardInterrupt


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def main(arguments: list[str]) -> int:
    """Run the command line, return its exit status."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, _open_closed(number))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _sigterm_as_interrupt():
            status = cli.main(arguments, prog_name="shardlint", standalone_mode=False)
            sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except (BrokenPipeError, _ClosedPipe):
        # What is left in the buffer would raise once more when the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except click.ClickException as error:
        error.show()
        return EXIT_UNTRUSTED
    except SystemExit:  # of the completion for shells
        raise
    except BaseException as error:  # never status 1, which means findings
        return _unexpected(error, arguments)
    return status if isinstance(status, int) else EXIT_OK


def _open_closed(number: int) -> TextIO:
    """
    A stream in place of one that the caller closed (`>&-`): Python gives None for it, and the next file that is opened
    would get its number. What is written goes nowhere, as the caller asked.
    """
    opened = os.open(os.devnull, os.O_WRONLY)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    return os.fdopen(number, "w", encoding="utf-8")


def _unexpected(error: BaseException, arguments: Sequence[str]) -> int:
    from .errors import describe

    text, known = describe(error)
    head = "Error:" if known else "shardlint: internal error:"
    click.echo(f"{head}\n{text}" if "\n" in text else f"{head} {text}", err=True)
    if os.environ.get("SHARDLINT_DEBUG", "0") not in ("", "0") or {"-v", "--verbose"} & set(arguments):
        import traceback

        traceback.print_exception(error)
    elif not known:
        click.echo("Set SHARDLINT_DEBUG=1 to see the traceback, and please report it.", err=True)
    return EXIT_UNTRUSTED
