"""`shardlint ownership`: who owns each parameter, and where its gradient goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from attrs import evolve

from ...names import glob_matches
from ..base import Command, Problem, echo, option
from ..options import format_option, load, pack_options, packs_of, stacked
from ..output import terminal_width, write_whole
from ..targets import TargetRequest, obtain, target_options

if TYPE_CHECKING:
    from ...facts import Facts, ShardingFacts

_options = stacked(
    format_option("text", "csv", "json"),
    option(
        "Output",
        "-o",
        "--output",
        default="-",
        metavar="FILE",
        help="Where to write; - is standard output. [default: -]",
    ),
    option("Output", "--collapse/--no-collapse", default=True, help="Join rows of text over layers, or not."),
    option(
        "Output",
        "--match",
        multiple=True,
        metavar="GLOB",
        help="Only parameters of this name; * is one segment, ** any number. Repeatable.",
    ),
    option(
        "Job",
        "--rank",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Under torchrun: the rank that writes its table; the others write nothing.",
    ),
)


@click.command(
    "ownership",
    cls=Command,
    examples=(
        ("shardlint ownership train.py:build_model", "units, and parameters joined over layers"),
        ("torchrun --nproc-per-node 8 -m shardlint ownership train.py:build_model --rank 3", "what rank 3 holds"),
        ("shardlint ownership facts.json --output-format csv -o ownership.csv", "the flat table of a snapshot"),
        ("shardlint ownership facts.json --match '**.experts.**' --no-collapse", "experts, one by one"),
    ),
)
@target_options
@_options
@pack_options
def command(
    *,
    target: str,
    checkpoint: str | None,
    contract: str | None,
    arg: tuple[str, ...],
    output_format: str,
    output: str,
    collapse: bool,
    match: tuple[str, ...],
    rank: int,
    config: str | None,
    isolated: bool,
    require_pack: tuple[str, ...],
    disable_pack: tuple[str, ...],
) -> None:
    """
    Show who owns each parameter of TARGET.

    For every parameter: the unit that owns it, its gradient domain, how it is cut, over which ranks its gradient is
    summed and what the sum is divided by. TARGET and its options are those of `shardlint lint`.
    """
    from ...report.ownership import ownership_csv, ownership_json, ownership_text

    settings = load(config, isolated, (target, checkpoint))
    registry = packs_of(settings, require_pack, disable_pack)
    facts, _ = obtain(TargetRequest(target, checkpoint, contract, arg), registry, settings)
    _check_rank(rank, facts, live=bool(target.partition(":")[2]))
    sharding = _matching(_sharding(facts), match)
    if facts.environment.world_size > 1 and facts.environment.rank != rank and target.partition(":")[2]:
        return
    if output_format == "text" and output == "-":
        echo(ownership_text(sharding, terminal_width(), collapsed=collapse))
        return
    if output_format == "text":
        text = "\n".join(ownership_text(sharding, 120, collapsed=collapse)) + "\n"
    else:
        text = ownership_csv(sharding) if output_format == "csv" else ownership_json(sharding)
    write_whole(output, text)


def _check_rank(rank: int, facts: Facts, *, live: bool) -> None:
    """Raise `click.UsageError` for a rank that is not there: nobody would write its table."""
    place = facts.environment
    if rank and (rank >= place.world_size if live else rank != place.rank):
        there = f"a job of {place.world_size}" if live else f"the facts of rank {place.rank}"
        raise click.UsageError(f"--rank {rank}: expected a rank of this run, got {there}")


def _sharding(facts: Facts) -> ShardingFacts:
    from ...facts import Section

    if facts.build is not None and facts.build.failed:
        build = facts.build
        where = f" at {build.frame}" if build.frame else ""
        raise Problem(f"{build.builder} raised {build.error_type}: {build.error}{where}")
    if facts.sharding is None:
        raise Problem(f"expected a target with a model, to see who owns what: {facts.why_absent(Section.SHARDING)}")
    return facts.sharding


def _matching(sharding: ShardingFacts, globs: tuple[str, ...]) -> ShardingFacts:
    if not globs:
        return sharding
    kept = tuple(
        parameter for parameter in sharding.parameters if any(glob_matches(glob, parameter.fqn) for glob in globs)
    )
    if not kept:
        raise Problem(f"--match {' '.join(globs)}: expected the name of a parameter, found none that matches")
    return evolve(sharding, parameters=kept)
