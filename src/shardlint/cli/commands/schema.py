"""`shardlint schema`: the JSON Schemas of everything that shardlint reads and writes."""

from __future__ import annotations

import click

from ..base import Command, echo


@click.command("schema", cls=Command, examples=(("shardlint schema report > report.schema.json", "for a validator"),))
@click.argument("what", type=click.Choice(["facts", "report", "config"]))
def command(what: str) -> None:
    """Print the JSON Schema of facts, report or configuration."""
    import json

    echo(json.dumps(_schema(what), indent=2))


def _schema(what: str) -> object:
    if what == "facts":
        from ...facts.codec import facts_schema

        return facts_schema()
    if what == "config":
        from ...config import config_schema

        return config_schema()
    from ...report import report_schema

    return report_schema()
