"""`shardlint packs`: the packs that were found, and what became of each."""

from __future__ import annotations

import click

from ...names import counted
from ...report.layout import labelled, table
from ...report.style import Style
from ..base import EXIT_OK, EXIT_UNTRUSTED, Command, echo
from ..options import color_option, format_option, load, pack_options, packs_of, style_of
from ..output import terminal_width

_COLORS = {"loaded": "green", "failed": "red", "disabled": "dim"}


@click.command(
    "packs",
    cls=Command,
    examples=(
        ("shardlint packs", "what is installed"),
        ("shardlint packs --require-pack 'acme>=1.2'", "exit status 2 unless it is there"),
    ),
)
@format_option("text", "json")
@color_option
@pack_options
def command(
    *,
    output_format: str,
    color: str,
    config: str | None,
    isolated: bool,
    require_pack: tuple[str, ...],
    disable_pack: tuple[str, ...],
) -> int:
    """
    List packs, and what became of each.

    Shows name, distribution, version, API, state and number of rules. Exit status 2 when one failed.
    """
    registry = packs_of(load(config, isolated), require_pack, disable_pack)
    style, width = style_of(color), terminal_width()
    if output_format == "json":
        from ...report.json import encode

        echo(encode({"packs": registry.packs, "diagnostics": registry.diagnostics}))
    else:
        rows = [
            (
                pack.name,
                f"{pack.dist or '(local)'} {pack.version}".strip(),
                f"api {pack.api}" if pack.api is not None else "",
                pack.status.value,
                counted(pack.rules, "rule"),
                pack.location,
            )
            for pack in registry.packs
        ]
        echo([_painted(line, style) for line in table(rows, width)])
        for finding in registry.diagnostics:
            head = style.severity(finding.severity) + style.paint(f" {finding.code} {finding.name}", "bold")
            echo(["", f"{head} {finding.subject}", *labelled("", finding.message, width, "  ", 0)])
            for key, value in finding.evidence.items():
                echo(labelled("", f"{key.replace('_', ' ')}: {value}", width, "    ", 0))
    return EXIT_UNTRUSTED if registry.diagnostics else EXIT_OK


def _painted(line: str, style: Style) -> str:
    for state, color in _COLORS.items():
        line = line.replace(f"  {state} ", f"  {style.paint(state, color)} ", 1)
    return line
