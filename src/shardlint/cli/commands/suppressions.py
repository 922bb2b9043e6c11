"""`shardlint suppressions`: what is suppressed, why, until when, and whether it still is in use."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

import click

from ...names import counted
from ...report.layout import labelled
from ...report.style import Style
from ..base import Command, echo, option
from ..options import as_of_option, color_option, format_option, load, pack_options, packs_of, style_of
from ..output import terminal_width
from ..targets import TargetRequest, obtain

if TYPE_CHECKING:
    from ...config import Settings
    from ...engine.suppressions import SuppressionState
    from ...plugins.registry import Registry

_COLORS = {"active": "green", "expired": "red", "over-broad": "red", "unused": "yellow", "unknown": "yellow"}


@click.command(
    "suppressions",
    cls=Command,
    examples=(
        ("shardlint suppressions", "every suppression with its reason; expired ones are marked"),
        ("shardlint suppressions facts.json", "judged by a run: which are unused or too broad"),
        ("shardlint suppressions --as-of 2027-01-01", "which will have expired by then"),
    ),
)
@click.argument("target", required=False)
@format_option("text", "json")
@option(
    "Target",
    "--checkpoint",
    type=click.Path(),
    metavar="DIR",
    help="The checkpoint that belongs to TARGET.",
)
@as_of_option
@color_option
@pack_options
def command(
    *,
    target: str | None,
    output_format: str,
    checkpoint: str | None,
    as_of: date | None,
    color: str,
    config: str | None,
    isolated: bool,
    require_pack: tuple[str, ...],
    disable_pack: tuple[str, ...],
) -> None:
    """
    List suppressions with reason and state.

    Without TARGET nothing is evaluated, so that only expired suppressions and unknown rules can be reported.
    """
    settings = load(config, isolated)
    registry = packs_of(settings, require_pack, disable_pack)
    request = TargetRequest(target, checkpoint) if target else None
    states = _states(settings, registry, as_of, request)
    if output_format == "json":
        from ...report.json import encode

        echo(encode([_record(state) for state in states]))
    else:
        echo(_listed(states, style_of(color)))


def _states(
    settings: Settings, registry: Registry, as_of: date | None, request: TargetRequest | None
) -> Sequence[SuppressionState]:
    from ...engine.suppressions import apply_suppressions

    if request is None:
        today = as_of or date.today()
        return apply_suppressions((), settings.suppressions, (), today, registry.rules).states
    from ...api import open_session

    session = open_session(settings, registry=registry, today=as_of)
    return session.run(*obtain(request, registry, settings)).suppressed.states


def _record(state: SuppressionState) -> dict[str, object]:
    entry = state.suppression
    return {
        "rules": list(entry.rules),
        "subject": entry.subject,
        "reason": entry.reason,
        "expires": entry.expires.isoformat() if entry.expires else None,
        "expect": entry.expect,
        "source": str(entry.source),
        "state": state.state.value,
        "matched": state.matched,
        "unknown": list(state.unknown),
    }


def _listed(states: Sequence[SuppressionState], style: Style) -> list[str]:
    lines: list[str] = []
    width = terminal_width()
    for suppression_state in states:
        entry = suppression_state.suppression
        state = style.paint(suppression_state.state.value, _COLORS.get(suppression_state.state.value, "dim"))
        lines.append(f"{state} {style.paint(', '.join(entry.rules), 'bold')} {entry.subject}")
        facts = [("reason", entry.reason), ("where", str(entry.source))]
        facts += [("expires", entry.expires.isoformat())] if entry.expires else []
        facts += [("expect", counted(entry.expect, "finding"))] if entry.expect else []
        facts += [("matched", counted(suppression_state.matched, "finding"))] if suppression_state.matched else []
        facts += [("no such", ", ".join(suppression_state.unknown))] if suppression_state.unknown else []
        for label, text in facts:
            lines += labelled(label, text, width, "  ", 9)
    return [*lines, counted(len(states), "suppression")]
