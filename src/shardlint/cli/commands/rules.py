"""`shardlint rules`: the rules there are, whether each is on, and which setting decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ...diagnostics import DIAGNOSTICS
from ...names import counted
from ...report.layout import table, wrap
from ...report.style import Style
from ...rule import Cost
from ..base import Command, echo
from ..options import (
    color_option,
    complete_rules,
    format_option,
    load,
    pack_options,
    packs_of,
    selection_options,
    style_of,
)
from ..output import terminal_width

if TYPE_CHECKING:
    from ...engine.selection import Decision

_STATE = {True: "on", False: "off"}


@click.command(
    "rules",
    cls=Command,
    examples=(
        ("shardlint rules", "every rule of every pack"),
        ("shardlint rules D5 tie-not-real", "those of a phase, and one more"),
        ("shardlint rules --enabled --ignore D5", "what would run, and which setting decides it"),
    ),
)
@click.argument("selectors", metavar="[SELECTOR]...", nargs=-1, shell_complete=complete_rules)
@click.option("--enabled", is_flag=True, help="Show for every rule whether it is on, and which setting decided.")
@format_option("text", "json")
@selection_options
@color_option
@pack_options
def command(
    *,
    selectors: tuple[str, ...],
    enabled: bool,
    output_format: str,
    select: tuple[str, ...],
    extend_select: tuple[str, ...],
    ignore: tuple[str, ...],
    severity: tuple[str, ...],
    color: str,
    config: str | None,
    isolated: bool,
    require_pack: tuple[str, ...],
    disable_pack: tuple[str, ...],
) -> None:
    """
    List rules: code, name, severity, summary.

    SELECTOR is a code, prefix, phase, name, tag, pack or ALL.
    """
    from ...engine.selection import Item, Layer, flag_layer, select_from
    from ...engine.source import SettingSource

    settings = load(config, isolated)
    registry = packs_of(settings, require_pack, disable_pack)
    layer = flag_layer(select, extend_select, ignore, severity)
    decisions: Sequence[Decision] = select_from(registry, (*settings.layers, layer)).decisions
    if selectors:
        asked = Layer(select=tuple(Item(text, SettingSource(text="SELECTOR")) for text in selectors))
        chosen = select_from(registry, (asked,))
        wanted = {decision.rule.rule_class.code for decision in chosen.decisions if decision.enabled}
        decisions = [decision for decision in decisions if decision.rule.rule_class.code in wanted]
    if output_format == "json":
        from ...report.json import encode

        echo(encode([_record(decision) for decision in decisions]))
    else:
        echo(_enabled(decisions, style_of(color)) if enabled else _listed(decisions, style_of(color)))


def _record(decision: Decision) -> dict[str, object]:
    rule = decision.rule.rule_class
    return {
        "code": rule.code,
        "name": rule.name,
        "phase": rule.phase.value,
        "severity": (decision.severity or rule.severity).value,
        "cost": rule.cost.value,
        "summary": _summary(decision),
        "tags": list(rule.tags),
        "pack": decision.rule.pack,
        "enabled": decision.enabled,
        "selector": decision.selector,
        "decided_by": decision.decided_by,
        "severity_from": decision.severity_from or "default",
    }


def _summary(decision: Decision) -> str:
    return " ".join(decision.rule.rule_class.page.summary.split())


def _listed(decisions: Sequence[Decision], style: Style) -> list[str]:
    lines: list[str] = []
    rules = [decision.rule.rule_class for decision in decisions]
    columns = [
        max(map(len, cells), default=0) for cells in zip(*((rule.code, rule.name) for rule in rules), strict=True)
    ]
    for phase in sorted({rule.phase for rule in rules}):
        members = [decision for decision in decisions if decision.rule.rule_class.phase is phase]
        rows = [(*_identity(member, columns), _severity(member), _summary(member)) for member in members]
        lines += [style.paint(f"{phase.value} {phase.title}", "bold"), *table(rows, terminal_width(), "  "), ""]
    always = ", ".join(sorted(DIAGNOSTICS))
    last = f"{counted(len(decisions), 'rule')}; the engine's own findings are always on: {always}"
    return [*lines, *wrap(last, terminal_width(), "", "  ")]


def _identity(decision: Decision, columns: Sequence[int]) -> tuple[str, str]:
    """Code and name, as wide as the widest of all phases, so that the phases line up."""
    rule = decision.rule.rule_class
    return rule.code.ljust(columns[0]), rule.name.ljust(columns[1])


def _severity(decision: Decision) -> str:
    rule = decision.rule.rule_class
    heavy = " heavy" if rule.cost is Cost.HEAVY else ""
    return (decision.severity or rule.severity).value + heavy


def _enabled(decisions: Sequence[Decision], style: Style) -> list[str]:
    rows = []
    for decision in decisions:
        rule = decision.rule.rule_class
        why = f"{decision.selector or 'nothing selects it'} by {decision.decided_by}"
        if decision.severity_from:
            why += f", severity by {decision.severity_from}"
        rows.append((_STATE[decision.enabled], rule.code, rule.name, _severity(decision), why))
    lines = table(rows, terminal_width())
    shown = [line if line.startswith("on") else style.paint(line, "dim") for line in lines]
    on = sum(1 for decision in decisions if decision.enabled)
    return [*shown, "", f"{counted(len(decisions), 'rule')}: {on} on, {len(decisions) - on} off"]
