"""Options that several commands share, and what they lead to: settings, packs, selection."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..names import printable
from ..report.pages import RulePage, all_pages
from ..report.style import Style, wants_color
from .base import option

if TYPE_CHECKING:
    from ..config import Settings
    from ..plugins.registry import Registry

_F = TypeVar("_F", bound=Callable[..., Any])

_CONFIG = "Configuration"


def stacked(*decorators: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """One decorator out of several; in the help the first comes first."""

    def apply(function: _F) -> _F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def format_option(*names: str) -> Callable[[_F], _F]:
    """`--output-format` of a command that prints one thing in one of several formats; the first is the default."""
    return option(
        "Output",
        "--output-format",
        type=click.Choice(names),
        metavar="FORMAT",
        default=names[0],
        show_default=True,
        help=f"How to print it: {', '.join(names[:-1])} or {names[-1]}.",
    )


color_option = option(
    "Output",
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colours: auto checks the terminal, NO_COLOR and FORCE_COLOR.",
)

config_options = stacked(
    option(
        _CONFIG,
        "--config",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Read this file instead of the nearest shardlint.yaml, .shardlint.yaml or pyproject.toml.",
    ),
    option(_CONFIG, "--isolated", is_flag=True, help="Read no configuration file."),
)

pack_options = stacked(
    config_options,
    option(
        _CONFIG,
        "--require-pack",
        multiple=True,
        metavar="NAME",
        help="Fail unless this pack is there; a version may follow: 'acme>=1.2'. Repeatable.",
    ),
    option(
        _CONFIG,
        "--disable-pack",
        multiple=True,
        metavar="NAME",
        help="Do not load this pack. Repeatable.",
    ),
)


def complete_rules(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """What a shell offers for a rule: codes, names and phases; in a comma list for its last item."""
    from ..plugins.manager import load_packs

    before, comma, start = incomplete.rpartition(",")
    rules = load_packs().rules
    known = {text for rule in rules for text in (rule.code, rule.name, rule.phase.value)}
    matching = sorted(text for text in known if text.lower().startswith(start.lower()))
    return [f"{before}{comma}{text}" for text in matching]


selection_options = stacked(
    option(
        "Rules",
        "--select",
        multiple=True,
        metavar="RULES",
        shell_complete=complete_rules,
        help="Evaluate these rules only: codes, code prefixes, phases (D3), names, tags, packs or ALL, joined by "
        "commas. Repeatable.",
    ),
    option(
        "Rules",
        "--extend-select",
        multiple=True,
        metavar="RULES",
        shell_complete=complete_rules,
        help="Evaluate these rules as well. Repeatable.",
    ),
    option(
        "Rules",
        "--ignore",
        multiple=True,
        metavar="RULES",
        shell_complete=complete_rules,
        help="Leave these rules out; the more specific of select and ignore wins, ignore wins ties. Repeatable.",
    ),
    option(
        "Rules",
        "--severity",
        multiple=True,
        metavar="RULE=LEVEL",
        help="Give the findings of a rule another severity: info, warning, error, or off. Repeatable.",
    ),
)


def as_date(ctx: click.Context, parameter: click.Parameter, value: str | None) -> date | None:
    """Callback: a date in the form YYYY-MM-DD."""
    if value is None:
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"expected a date such as 2026-12-31, got {value!r}", ctx, parameter) from None


as_of_option = option(
    "Suppressions",
    "--as-of",
    metavar="DATE",
    callback=as_date,
    help="Judge expiry dates as of this day (YYYY-MM-DD) instead of today.",
)


def load(config: str | None, isolated: bool, inspected: Iterable[str | None] = ()) -> Settings:
    """The settings that hold in the working directory; those that lie in what is `inspected` do not."""
    from ..config import load_settings

    if config is not None and isolated:
        raise click.UsageError("--config and --isolated exclude each other")
    explicit = Path(config) if config else None
    settings = load_settings(Path.cwd(), explicit=explicit, isolated=isolated, inspected=inspected)
    for warning in settings.warnings:
        click.echo(f"Warning: {printable(warning)}", err=True)
    return settings


def packs_of(settings: Settings, require: tuple[str, ...] = (), disable: tuple[str, ...] = ()) -> Registry:
    """The packs, as the settings and the command line want them."""
    from ..api import load_registry

    return load_registry(settings, require=require, disable=disable)


def known_pages(
    config: str | None, isolated: bool, require_pack: tuple[str, ...], disable_pack: tuple[str, ...]
) -> tuple[list[RulePage], tuple[str, ...]]:
    """Pages of all rules of the packs that the options lead to and of the engine's diagnostics; how packs failed."""
    registry = packs_of(load(config, isolated), require_pack, disable_pack)
    return all_pages((rule.rule_class, rule.pack, rule.dist) for rule in registry.rules), registry.failures()


def style_of(color: str) -> Style:
    """How to paint what goes to standard output."""
    return Style(wants_color(sys.stdout, color))
