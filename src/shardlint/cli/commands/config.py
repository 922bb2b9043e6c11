"""`shardlint config`: what the settings are, whether they are right, what they may be, and a file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...names import counted
from ...rule import Severity
from ..base import EXIT_OK, EXIT_UNTRUSTED, WIDEST_HELP, Command, CommandGroup, Problem, echo
from ..options import config_options, format_option, load, pack_options, packs_of
from ..output import parse_outputs, reporters_of, where_set, write_whole

if TYPE_CHECKING:
    from ...config import Settings


@click.group("config", cls=CommandGroup, context_settings={"max_content_width": WIDEST_HELP})
def command() -> None:
    """Show, validate, describe or start the configuration."""


@command.command(
    "show",
    cls=Command,
    examples=(
        ("shardlint config show", "every setting, its value, and where it stands"),
        ("shardlint config show --output-format json", "for programs"),
    ),
)
@format_option("text", "json")
@config_options
def show(output_format: str, config: str | None, isolated: bool) -> None:
    """Show the settings that hold here, and where each stands."""
    settings = load(config, isolated)
    if output_format == "json":
        from ...report.json import encode

        echo(encode({"files": [str(file) for file in settings.files], "values": settings.values.plain()}))
    else:
        from ...config import render_settings

        echo(render_settings(settings).rstrip("\n"))


@command.command(
    "validate",
    cls=Command,
    examples=(
        ("shardlint config validate", "the file that holds in this folder"),
        ("shardlint config validate --config ci/shardlint.yaml", "another one"),
    ),
)
@pack_options
def validate(config: str | None, isolated: bool, require_pack: tuple[str, ...], disable_pack: tuple[str, ...]) -> int:
    """
    Check the configuration, also against the packs.

    Every key and value, every selector, rule and option of a rule. Exit status 2 when something is wrong.
    """
    from ...api import open_session
    from ...engine.suppressions import apply_suppressions
    from ...report.concise import finding_line

    settings = load(config, isolated)
    session = open_session(settings, registry=packs_of(settings, require_pack, disable_pack))
    parse_outputs(settings.output_format, reporters_of(session.registry), where_set(settings))
    applied = apply_suppressions((), settings.suppressions, (), session.today, session.registry.rules)
    findings = (*session.registry.diagnostics, *session.selection.diagnostics, *applied.diagnostics)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    echo([finding_line(finding) for finding in findings] + [_validated(settings, errors)])
    return EXIT_UNTRUSTED if errors else EXIT_OK


def _validated(settings: Settings, errors: int) -> str:
    verdict = f"{counted(errors, 'error')} to fix" if errors else "every setting is valid"
    if settings.file is None:
        return "no configuration file: the defaults hold" + (f", {verdict}" if errors else "")
    return f"{settings.file}: {counted(len(settings.files), 'file')} read, {verdict}"


@command.command(
    "schema", cls=Command, examples=(("shardlint config schema > shardlint.schema.json", "for an editor"),)
)
def schema() -> None:
    """Print the JSON Schema of the configuration."""
    import json

    from ...config import config_schema

    echo(json.dumps(config_schema(), indent=2))


@command.command(
    "init",
    cls=Command,
    examples=(("shardlint config init", "writes shardlint.yaml here, unless there is one"),),
)
@click.option(
    "-o",
    "--output",
    default="shardlint.yaml",
    metavar="FILE",
    show_default=True,
    help="The file; - is standard output.",
)
def init(output: str) -> None:
    """Write a configuration file to start from. An existing file is never overwritten."""
    from ...config import TEMPLATE

    if output != "-" and Path(output).exists():
        raise Problem(f"{output!r} exists already; edit it, or name another file with --output")
    write_whole(output, TEMPLATE)
    if output != "-":
        echo(f"wrote {output}")
