"""`shardlint demo`: see it work on a model of its own."""

from __future__ import annotations

import sys

import click

from ...report.text import write_text
from ..base import EXIT_OK, EXIT_UNTRUSTED, Command, echo
from ..options import color_option, style_of
from ..output import report_options


@click.command(
    "demo", cls=Command, examples=(("shardlint demo", "takes a few seconds, offline, leaves nothing behind"),)
)
@color_option
@click.option("-v", "--verbose", count=True, help="Everything in the reports, and tracebacks of errors.")
def command(color: str, verbose: int) -> int:
    """
    Lint a tiny Llama of its own, sound and with three faults.

    The model is built by Transformers (pip install 'shardlint[hf]') and saved in a temporary folder. Exit status 0
    when the demo found what it should find.
    """
    from ..demo import run_demo

    style = style_of(color)
    good = True
    for number, step in enumerate(run_demo(), 1):
        echo(("" if number == 1 else "\n") + style.paint(f"== {number}. {step.title}", "bold", "cyan") + "\n")
        write_text(step.report, sys.stdout, report_options(color=color, verbosity=verbose))
        sys.stdout.flush()
        good = good and step.ok
        if not step.ok:
            echo(f"expected {_codes(step.expected)}, found {_codes(step.found)}")
    echo("")
    echo("The demo found what it should find." if good else "The demo did not find what it should find.")
    return EXIT_OK if good else EXIT_UNTRUSTED


def _codes(codes: frozenset[str]) -> str:
    return ", ".join(sorted(codes)) or "nothing"
