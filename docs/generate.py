"""
Write the pages of the built-in rules, `docs/rules/*.md`, from the rule classes and their cases.

    python docs/generate.py            write the pages
    python docs/generate.py --check    write nothing; exit 1 and name the pages that differ
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from shardlint import Finding, Rule
from shardlint.testing import Case, cases_by_rule, load_folder, run_case
from shardlint_rules.pack import shardlint_rules

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "rules"
CASES = ROOT / "tests" / "rules"


def page_name(rule: type[Rule]) -> str:
    """The file name of a rule's page."""
    return f"{rule.code}-{rule.name}.md"


def page(rule: type[Rule], cases: Iterable[Case]) -> str:
    """The whole page of a rule as Markdown."""
    held = list(cases)
    parts = [f"# {rule.code} {rule.name}", rule.page.summary, _table(rule)]
    parts += [f"## {title}\n\n{body}" for title, body in rule.page.sections.items()]
    parts += [*_options(rule), *_found(held), *_not_found(held), *_unknown(held)]
    return "\n\n".join(parts) + "\n"


def _table(rule: type[Rule]) -> str:
    rows = {
        "phase": f"{rule.phase.value} {rule.phase.title}",
        "severity": rule.severity.value,
        "cost": rule.cost.value,
        "needs the facts": ", ".join(section.value for section in rule.needs) or "none",
        "blocks when it finds an error": ", ".join(rule.blocks),
        "related configuration": ", ".join(f"`{key}`" for key in rule.related_config),
        "tags": ", ".join(rule.tags),
        "since": rule.since,
    }
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in rows.items() if value)


def _options(rule: type[Rule]) -> Iterator[str]:
    fields = attrs.fields(rule.options_type)
    if not fields:
        return
    yield "## Options\n\n" + inspect.cleandoc(rule.options_type.__doc__ or "")
    yield "\n".join(f"- `{item.name.replace('_', '-')}`: default `{item.default!r}`" for item in fields)


def _found(cases: list[Case]) -> Iterator[str]:
    failing = [case for case in cases if case.kind == "fail"]
    if not failing:
        return
    yield "## What it finds"
    for case in failing:
        found = run_case(case, shardlint_rules()).findings
        yield f"{case.about}\n\n```text\n" + "\n".join(_line(finding) for finding in found) + "\n```"


def _line(finding: Finding) -> str:
    return f"{finding.severity.value}: {finding.subject}: {finding.message}"


def _not_found(cases: list[Case]) -> Iterator[str]:
    quiet = [case for case in cases if case.kind != "fail" and case.not_evaluated is None]
    if quiet:
        yield "## What it does not report\n\n" + "\n".join(f"- {case.about}" for case in quiet)


def _unknown(cases: list[Case]) -> Iterator[str]:
    open_questions = [case for case in cases if case.kind != "fail" and case.not_evaluated is not None]
    if open_questions:
        yield "## When it is not evaluated\n\n" + "\n".join(f"- {case.about}" for case in open_questions)


def index(rules: Iterable[type[Rule]]) -> str:
    """The table of all rules."""
    lines = ["# The built-in rules", "", "| code | name | severity | finds |", "| --- | --- | --- | --- |"]
    for rule in rules:
        first = " ".join(rule.page.summary.split())
        lines.append(f"| [{rule.code}]({page_name(rule)}) | {rule.name} | {rule.severity.value} | {first} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Every page by file name."""
    rules = shardlint_rules()
    cases = cases_by_rule(load_folder(CASES))
    found = {page_name(rule): page(rule, cases.get(rule.code, ())) for rule in rules}
    return {"index.md": index(rules), **found}


def drift(wanted: dict[str, str]) -> list[str]:
    """The names of pages that are absent, differ, or belong to no rule."""
    present = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    return sorted(name for name in {*wanted, *present} if wanted.get(name) != present.get(name))


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page differs")
    check = parser.parse_args(arguments).check
    wanted = pages()
    different = drift(wanted)
    if check:
        sys.stdout.writelines(f"docs/rules/{name} differs: run python docs/generate.py\n" for name in different)
        return 1 if different else 0
    PAGES.mkdir(parents=True, exist_ok=True)
    for name in different:
        if name in wanted:
            (PAGES / name).write_text(wanted[name], encoding="utf-8")
        else:
            (PAGES / name).unlink()
    sys.stdout.write(f"{len(wanted)} pages, {len(different)} written or deleted\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
