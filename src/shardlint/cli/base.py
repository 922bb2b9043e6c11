"""What the commands share: option sections and examples in the help, lists in one option, safe output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from ..names import did_you_mean

EXIT_OK, EXIT_FINDINGS, EXIT_UNTRUSTED, EXIT_INTERRUPTED, EXIT_PIPE = 0, 1, 2, 130, 141
WIDEST_HELP = 110

_F = TypeVar("_F", bound=Callable[..., Any])


class Problem(click.ClickException):
    """A user's mistake, or something that makes the run worthless: shown in one piece, exit status 2."""

    exit_code = EXIT_UNTRUSTED


class SectionOption(click.Option):
    """An option that belongs to a named section of the help."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Command(click.Command):
    """A command whose help shows options by section, then examples as they were written."""

    def __init__(self, *args: Any, examples: Iterable[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                section = "Help" if "--help" in parameter.opts else getattr(parameter, "section", "Options")
                sections.setdefault(section, []).append(record)
        sections["Help"] = sections.pop("Help", [])
        for title, records in sections.items():
            if not records:
                continue
            with formatter.section(title):
                formatter.write_dl(records, col_max=34)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line, text in self.examples:
                    formatter.write_text(f"# {text}")
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class CommandGroup(click.Group):
    """A group that suggests the command that was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            hint = did_you_mean(args[0], names) or f"; the commands are {', '.join(names)}"
            ctx.fail(f"no such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


def option(section: str, *names: str, **attributes: Any) -> Callable[[_F], _F]:
    """A click option in a section of the help."""
    return click.option(*names, cls=SectionOption, section=section, **attributes)


def echo(lines: str | Iterable[str]) -> None:
    """Write lines to standard output."""
    text = lines if isinstance(lines, str) else "\n".join(lines)
    sys.stdout.write(text + "\n")
