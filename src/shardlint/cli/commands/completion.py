"""`shardlint completion`: a script that completes commands, options and rules in the user's shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ..base import Command, Problem, echo


@click.command(
    "completion",
    cls=Command,
    examples=(
        ('eval "$(shardlint completion bash)"', "bash, for this shell or in ~/.bashrc"),
        ('eval "$(shardlint completion zsh)"', "zsh, after compinit"),
        ("shardlint completion fish > ~/.config/fish/completions/shardlint.fish", "fish"),
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise Problem(f"the installed click has no completion for {shell}")
    echo(kind(ctx.find_root().command, {}, "shardlint", "_SHARDLINT_COMPLETE").source())
