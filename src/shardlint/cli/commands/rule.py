"""`shardlint rule`: the page of a rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from ...names import did_you_mean
from ...report.pages import RulePage, by_code_and_name, page_markdown, page_text
from ..base import Command, Problem, echo
from ..options import color_option, complete_rules, format_option, known_pages, pack_options, style_of
from ..output import terminal_width

_CODE = re.compile(r"([DV][0-9]|[A-Z]{2,8})[0-9]+\Z")  # a built-in code begins with its phase, others with a prefix


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
    pages, failures = known_pages(**packs)
    known = by_code_and_name(pages)
    chosen = pages if everything else [_page(rule, known, failures) for rule in rules]
    if output_format == "json":
        from ...report.json import encode

        echo(encode(chosen if everything or len(chosen) > 1 else chosen[0]))
    elif output_format == "markdown":
        echo("\n\n".join(page_markdown(page) for page in chosen))
    else:
        style, width = style_of(color), terminal_width()
        echo("\n\n\n".join("\n".join(page_text(page, width, style)) for page in chosen))


def _page(text: str, known: dict[str, RulePage], failures: Sequence[str]) -> RulePage:
    """The page of a code, which may be typed in lower case, or name. Raises `Problem` naming what was meant."""
    page = known.get(text) or known.get(text.upper())
    if page is None:
        problem = f"no rule {text!r}{_hint(text, known)}; `shardlint rules` lists them"
        raise Problem("\n".join((problem, *failures)))
    return page


def _hint(text: str, known: dict[str, RulePage]) -> str:
    """For what looks like a code the codes that begin like it, else the nearest name."""
    code = _CODE.match(text.upper())
    if code is None:
        return did_you_mean(text, known)
    alike = sorted(other for other in known if other.startswith(code[1]) and _CODE.match(other))
    if alike:
        return f" ({code[1]} has {alike[0]} to {alike[-1]})"
    return f" (codes begin with {', '.join(sorted({match[1] for other in known if (match := _CODE.match(other))}))})"
