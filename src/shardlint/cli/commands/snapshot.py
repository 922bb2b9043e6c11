"""`shardlint snapshot`: keep the facts, to lint them later or elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from ..base import Command
from ..options import load, pack_options, packs_of
from ..output import check_writable, write_whole
from ..targets import TargetRequest, external_option, obtain, target_options


@click.command(
    "snapshot",
    cls=Command,
    examples=(
        ("shardlint snapshot train.py:build_model -o facts.json", "where the model can be built"),
        ("shardlint lint facts.json", "anywhere, without torch"),
        ("shardlint snapshot ckpt/ -o - | shardlint lint -", "through a pipe"),
    ),
)
@target_options
@external_option
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="Where to write the facts as JSON; - is standard output."
)
@pack_options
def command(
    *,
    target: str,
    checkpoint: str | None,
    contract: str | None,
    external: str | None,
    arg: tuple[str, ...],
    output: str,
    config: str | None,
    isolated: bool,
    require_pack: tuple[str, ...],
    disable_pack: tuple[str, ...],
) -> None:
    """
    Write the facts of TARGET to a file, without judging them.

    The file appears whole or not at all. TARGET and its options are those of `shardlint lint`.
    """
    from ...facts.codec import encode_facts

    if output != "-":
        check_writable(Path(output).expanduser(), f"--output {output}")
    settings = load(config, isolated, (target, checkpoint))
    registry = packs_of(settings, require_pack, disable_pack)
    facts, _ = obtain(TargetRequest(target, checkpoint, contract, arg, external), registry, settings)
    write_whole(output, encode_facts(facts).decode() + "\n")
