"""The TARGET argument and its options, and the facts that they lead to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve, frozen

from ..diagnostics import error_text
from .base import option
from .options import stacked
from .output import stdout_to_stderr

if TYPE_CHECKING:
    from ..collect import Resolved
    from ..config import Settings
    from ..facts import Facts
    from ..plugins.registry import Registry
    from ..target import LiveTarget

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
        help="The contract to hold the model to, or a function that returns it; wins over all others.",
    ),
    option(
        "Target",
        "--arg",
        multiple=True,
        metavar="NAME=VALUE",
        help="A keyword argument for the builder; numbers, true, false and null are read as such. Repeatable.",
    ),
)


external_option: Callable[[Any], Any] = option(
    "Target",
    "--external",
    metavar="MODULE:NAME",
    help="Tensors outside the module: an object with parameter_names() and shards(), or a function that returns it "
    "(called with the model).",
)


@frozen
class TargetRequest:
    """What was asked to be looked at."""

    target: str
    checkpoint: str | None = None
    contract: str | None = None
    arguments: tuple[str, ...] = ()
    external: str | None = None


def obtain(
    request: TargetRequest, registry: Registry, settings: Settings, *, values: bool = True
) -> tuple[Facts, LiveTarget | None]:
    """
    The facts of the target, and the live objects behind them when there are any.

    Without `values` no tensor is looked into.
    What a builder prints goes to standard error, so that it cannot end up inside a report. Raises `TargetError`.
    """
    from ..api import collect_options, live_of
    from ..collect import collect_resolved

    with stdout_to_stderr():
        resolved = _with_external(_resolved_here(request), request.external)
        if resolved.kind == "checkpoint" and request.checkpoint is not None:
            raise click.UsageError(
                f"TARGET {request.target!r} is a checkpoint itself, and --checkpoint names another: give one of them, "
                "or compare the two with --reference"
            )
        facts = collect_resolved(
            resolved,
            collect_options(settings, registry, contract=request.contract, values=values),
            checkpoint=request.checkpoint,
        )
    if resolved.facts is not None and settings.contract is not None and facts.contract is None:
        click.echo(
            f"Warning: {settings.source('contract')}: the contract is not used: contracts are evaluated where facts "
            "are collected, and these were collected without one; take the snapshot again with this configuration",
            err=True,
        )
    target = resolved.target
    if target is None:
        return facts, None
    checkpoint = request.checkpoint or target.checkpoint
    return facts, live_of(evolve(target, checkpoint=checkpoint), settings)


def _with_external(resolved: Resolved, text: str | None) -> Resolved:
    """The target with the external state that `--external` names. Raises `click.UsageError` and `ImportProblem`."""
    if text is None:
        return resolved
    from ..introspect.importing import import_object
    from ..target import check_external

    if resolved.target is None or resolved.target.model is None:
        raise click.UsageError("--external is about tensors beside a model: TARGET must be a builder")
    external = import_object(text)
    if not hasattr(external, "shards") or isinstance(external, type):
        external = _called(external, resolved.target.model, text)
    try:
        check_external(external)
    except TypeError as error:
        raise click.UsageError(f"--external {text}: {error}") from error
    return evolve(resolved, target=evolve(resolved.target, external=external))


def _called(make: Any, model: Any, text: str) -> Any:
    """What the function that `--external` names returns for the model."""
    try:
        return make(model)
    except Exception as error:  # the user's code can raise anything
        told = f"{type(error).__name__}: {error_text(error)}"
        raise click.UsageError(f"--external {text}: calling it with the model raised {told}") from error


def _resolved_here(request: TargetRequest) -> Resolved:
    """
    Resolve the target and come back to the current folder, which a builder may have left.

    What the command line names (a checkpoint, files to write) is relative to where the user stood, what the builder
    names to where the builder stood when it returned.
    """
    from ..collect import resolve

    here = Path.cwd()
    try:
        resolved = resolve(request.target, request.arguments)
        target = resolved.target
        if target is not None and target.checkpoint is not None and Path.cwd() != here:
            resolved = evolve(
                resolved, target=evolve(target, checkpoint=Path(target.checkpoint).expanduser().absolute())
            )
    finally:
        os.chdir(here)
    return resolved
