"""The TARGET argument and its options, and the facts that they lead to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from .base import assignments, option
from .session import stacked

if TYPE_CHECKING:
    from ..config import Settings
    from ..facts import Facts
    from ..live import LiveTarget
    from ..plugins.registry import Registry

target_options: Callable[[Any], Any] = stacked(
    click.argument("target", metavar="TARGET"),
    option(
        "Target",
        "--checkpoint",
        type=click.Path(),
        metavar="DIR",
        help="The checkpoint that belongs to the model: a folder or a safetensors file. Only headers are read.",
    ),
    option(
        "Target",
        "--contract",
        metavar="MODULE:NAME",
        help="The contract to hold the model to, or a function without arguments that returns it.",
    ),
    option(
        "Target",
        "--arg",
        multiple=True,
        metavar="NAME=VALUE",
        callback=assignments("NAME=VALUE"),
        help="An argument for the builder; numbers, true, false and none are read as such. Repeatable.",
    ),
)


@frozen
class Request:
    """What was asked to be looked at."""

    target: str
    checkpoint: str | None = None
    contract: str | None = None
    arguments: dict[str, str] | None = None


def obtain(request: Request, registry: Registry, settings: Settings) -> tuple[Facts, LiveTarget | None]:
    """The facts of the target, and the live objects behind them when there are any."""
    from pathlib import Path

    from ..facts.codec import decode_facts

    return decode_facts(Path(request.target).read_bytes()), None


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What a builder prints must not end up inside a report."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
