"""Pages of rules: the same text for the command line, for Markdown and for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from attrs import frozen

from ..diagnostics import DIAGNOSTICS, Diagnostic
from ..facts import EMPTY, FrozenDict, freeze
from ..rule import Cost, Phase, Rule, Severity
from .layout import labelled, paragraphs, plain
from .style import Style

_COLUMN = 12


@frozen(kw_only=True)
class RulePage:
    """Everything there is to say about one rule or engine diagnostic. `options` is name to default and help."""

    code: str
    name: str
    phase: Phase
    severity: Severity
    cost: Cost = Cost.LIGHT
    summary: str
    sections: FrozenDict
    needs: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    related_config: tuple[str, ...] = ()
    since: str = ""
    suppressible: bool = True
    options: FrozenDict = EMPTY
    pack: str = "shardlint"
    dist: str = "shardlint"


def page_of(rule: type[Rule], pack: str = "shardlint", dist: str = "shardlint") -> RulePage:
    """The page of a rule class of `pack`."""
    return RulePage(
        code=rule.code,
        name=rule.name,
        phase=rule.phase,
        severity=rule.severity,
        cost=rule.cost,
        summary=" ".join(rule.page.summary.split()),
        sections=rule.page.sections,
        needs=tuple(section.value for section in rule.needs),
        blocks=rule.blocks,
        tags=rule.tags,
        related_config=rule.related_config,
        since=rule.since,
        options=_options(rule),
        pack=pack,
        dist=dist,
    )


def _options(rule: type[Rule]) -> FrozenDict:
    described: dict[str, Any] = {}
    defaults = rule.options_type()
    for field in attrs.fields(rule.options_type):
        help_text = str(field.metadata.get("help", ""))
        described[field.name.replace("_", "-")] = {"default": _plain(getattr(defaults, field.name)), "help": help_text}
    return FrozenDict(described)


def _plain(value: Any) -> Any:
    """Options may hold any type that a configuration can be turned into; those that are not plain are shown."""
    try:
        return freeze(value)
    except TypeError:
        return str(value)


def diagnostic_page(diagnostic: Diagnostic) -> RulePage:
    """The page of one of the engine's own diagnostics."""
    return RulePage(
        code=diagnostic.code,
        name=diagnostic.name,
        phase=Phase.ENGINE,
        severity=diagnostic.severity,
        summary=diagnostic.does,
        sections=FrozenDict(
            {"What it does": diagnostic.does, "Why it is unsafe": diagnostic.why, "What to do": diagnostic.remedy}
        ),
        suppressible=diagnostic.suppressible,
    )


def all_pages(rules: Iterable[tuple[type[Rule], str, str]]) -> list[RulePage]:
    """Pages of `(rule class, pack, dist)` and of the engine's diagnostics, in the order of phase and code."""
    pages = [page_of(*rule) for rule in rules] + [diagnostic_page(diagnostic) for diagnostic in DIAGNOSTICS.values()]
    return sorted(pages, key=lambda page: (page.phase, page.code))


def by_code_and_name(pages: Iterable[RulePage]) -> dict[str, RulePage]:
    """Every code and every name, with its page."""
    return {key: page for page in pages for key in (page.code, page.name)}


def _facts(page: RulePage) -> list[tuple[str, str]]:
    """Label and text of what is not prose."""
    always = [
        ("Phase", f"{page.phase.value} {page.phase.title}"),
        ("Severity", page.severity.value),
        ("Cost", "heavy: runs with --heavy or when selected by name" if page.cost is Cost.HEAVY else "light"),
    ]
    lists: Mapping[str, tuple[str, ...]] = {
        "Needs": page.needs,
        "Blocks": page.blocks,
        "Tags": page.tags,
        "Config": page.related_config,
    }
    some = [(label, ", ".join(items)) for label, items in lists.items() if items]
    pack = page.pack if page.pack == page.dist else f"{page.pack} (distribution {page.dist})"
    return [*always, *some, ("Pack", f"{pack}, since {page.since}" if page.since else pack)]


def page_text(page: RulePage, width: int, style: Style) -> list[str]:
    """The page as lines for a terminal."""
    lines = [style.paint(f"{page.code} {page.name}", "bold"), *paragraphs(page.summary, width), ""]
    for label, text in _facts(page):
        lines += labelled(label, text, width, "  ", _COLUMN)
    for title, body in page.sections.items():
        lines += ["", style.paint(title, "bold"), *paragraphs(str(body), width, "  ")]
    if page.options:
        lines += ["", style.paint("Options", "bold")]
        for name, option in page.options.items():
            text = f"{option['help']} (default: {plain(option['default'])})".strip()
            lines += labelled(name, text, width, "  ", max(_COLUMN, max(map(len, page.options)) + 2))
    if not page.suppressible:
        lines += ["", "It cannot be suppressed."]
    return lines


def page_markdown(page: RulePage) -> str:
    """The page as Markdown."""
    facts = "\n".join(f"- **{label}:** {text}" for label, text in _facts(page))
    parts = [f"# {page.code} {page.name}", page.summary, facts]
    parts += [f"## {title}\n\n{body}" for title, body in page.sections.items()]
    if page.options:
        rows = [
            f"- `{name}` (default `{plain(option['default'])}`): {option['help']}"
            for name, option in page.options.items()
        ]
        parts.append("## Options\n\n" + "\n".join(rows))
    if not page.suppressible:
        parts.append("It cannot be suppressed.")
    return "\n\n".join(parts)
