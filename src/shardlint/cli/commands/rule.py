"""`shardlint rule`: the page of a rule."""

from __future__ import annotations

from typing import Any

import click

from ...report.pages import RulePage, by_code_and_name, page_markdown, page_text
from ..base import Command, choose, echo
from ..output import terminal_width
from ..session import color_option, complete_rules, format_option, known_pages, pack_options, style_of


@click.command(
    "rule",
    cls=Command,
    examples=(
        ("shardlint rule D501", "why the finding matters and what to do"),
        ("shardlint rule tie-not-real", "by name"),
        ("shardlint rule --all --output-format markdown > rules.md", "every page"),
    ),
)
@click.argument("rules", metavar="CODE|NAME...", nargs=-1, shell_complete=complete_rules)
@click.option("--all", "everything", is_flag=True, help="Print the pages of all rules.")
@format_option("text", "json", "markdown")
@color_option
@pack_options
def command(rules: tuple[str, ...], everything: bool, output_format: str, color: str, **packs: Any) -> None:
    """
    Explain a rule: what it finds, why, what to do.

    The page also has the rule's options, and what it needs to be evaluated.
    """
    if bool(rules) == everything:
        raise click.UsageError("expected the code or name of a rule, or --all")
    pages = known_pages(**packs)
    known = by_code_and_name(pages)
    chosen = (
        pages if everything else [choose(_spelling(rule, known), known, "rule", "shardlint rules") for rule in rules]
    )
    if output_format == "json":
        from ...report.json import encode

        echo(encode(chosen if everything or len(chosen) > 1 else chosen[0]))
    elif output_format == "markdown":
        echo("\n\n".join(page_markdown(page) for page in chosen))
    else:
        style, width = style_of(color), terminal_width()
        echo("\n\n\n".join("\n".join(page_text(page, width, style)) for page in chosen))


def _spelling(text: str, known: dict[str, RulePage]) -> str:
    """Codes may be typed in lower case."""
    return text.upper() if text not in known and text.upper() in known else text
