"""Cases as data: a YAML file per rule, each case a small edit of a base snapshot and the exact findings expected."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from attrs import field, frozen

from ..facts import Facts, FrozenDict
from ..rule import Severity
from .base_facts import base_snapshot
from .edits import apply_edits

KINDS = ("clean", "fail", "guard")
_CASE_KEYS = {"name", "about", "kind", "base", "edits", "options", "expect", "not-evaluated", "nothing"}
_EXPECTED_KEYS = {"subject", "severity", "message", "says", "evidence", "owner"}


class CaseError(ValueError):
    """A case file that cannot be read, or that says something unknown."""


@frozen(kw_only=True)
class Expected:
    """
    One finding that a case expects: its subject, and of the rest what is given.

    `message` is the whole message, `says` parts of it; `evidence` a subset of the finding's.
    """

    subject: str
    severity: Severity | None = None
    message: str | None = None
    says: tuple[str, ...] = ()
    evidence: FrozenDict = field(default=FrozenDict(), converter=FrozenDict)
    owner: str | None = None


@frozen(kw_only=True)
class Case:
    """
    One case of a rule. `kind` is clean, fail, or guard (a false alarm that must not come back).

    `not_evaluated` is a part of the reason that the rule must give for not being evaluated, None when it must be.
    `nothing` tells that there is nothing in the snapshot for the rule to judge.
    """

    rule: str
    name: str
    about: str
    kind: str
    base: str
    edits: tuple[Mapping[str, Any], ...] = ()
    options: FrozenDict = field(default=FrozenDict(), converter=FrozenDict)
    expect: tuple[Expected, ...] = ()
    not_evaluated: str | None = None
    nothing: bool = False
    path: Path = Path()

    def __str__(self) -> str:
        return f"{self.rule}-{self.name}"


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice: the first value would be lost silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def load_folder(folder: Path) -> list[Case]:
    """Every case below `folder`, ordered by file and position. Raises `CaseError` when there is none."""
    cases = [case for path in sorted(folder.rglob("*.yaml")) for case in load_cases(path)]
    if not cases:
        raise CaseError(f"{folder}: expected *.yaml files with cases, found none")
    return cases


def load_cases(path: Path) -> list[Case]:
    """The cases of one file. Raises `CaseError` naming the file and what was expected."""
    try:
        with path.open(encoding="utf-8") as stream:
            data = yaml.load(stream, Loader=_Loader)
    except yaml.YAMLError as error:
        raise CaseError(f"{path}: {error}") from error
    if not isinstance(data, dict) or set(data) != {"rule", "cases"} or not isinstance(data["cases"], list):
        raise CaseError(f"{path}: expected the keys rule and cases (a list) at the top")
    cases = [_case(path, str(data["rule"]), entry) for entry in data["cases"]]
    names = [case.name for case in cases]
    if twice := {name for name in names if names.count(name) > 1}:
        raise CaseError(f"{path}: case names given twice: {', '.join(sorted(twice))}")
    return cases


def _case(path: Path, rule: str, plain_case: Mapping[str, Any]) -> Case:
    where = f"{path}: case {plain_case.get('name', '?')!r}"
    if unknown := set(plain_case) - _CASE_KEYS:
        raise CaseError(f"{where}: unknown {', '.join(sorted(unknown))}; known are {', '.join(sorted(_CASE_KEYS))}")
    missing = {"name", "about", "kind", "base"} - set(plain_case)
    if missing or plain_case["kind"] not in KINDS:
        raise CaseError(f"{where}: expected name, about, base and a kind of {', '.join(KINDS)}")
    expect = tuple(_expected(where, entry) for entry in plain_case.get("expect", ()))
    silent = not any(entry.severity is not Severity.INFO for entry in expect)
    right = bool(expect) if plain_case["kind"] == "fail" else silent
    if not right and "not-evaluated" not in plain_case:
        raise CaseError(f"{where}: a case of kind fail expects findings, any other kind none above info")
    return Case(
        rule=rule,
        name=str(plain_case["name"]),
        about=str(plain_case["about"]).strip(),
        kind=plain_case["kind"],
        base=plain_case["base"],
        edits=tuple(plain_case.get("edits", ())),
        options=plain_case.get("options", {}),
        expect=expect,
        not_evaluated=plain_case.get("not-evaluated"),
        nothing=bool(plain_case.get("nothing", False)),
        path=path,
    )


def _expected(where: str, entry: Mapping[str, Any]) -> Expected:
    if "subject" not in entry or set(entry) - _EXPECTED_KEYS:
        raise CaseError(f"{where}: an expected finding has a subject and any of {', '.join(sorted(_EXPECTED_KEYS))}")
    says = entry.get("says", ())
    return Expected(
        subject=str(entry["subject"]),
        severity=Severity.from_user(entry["severity"]) if "severity" in entry else None,
        message=entry.get("message"),
        says=(says,) if isinstance(says, str) else tuple(says),
        evidence=entry.get("evidence", {}),
        owner=entry.get("owner"),
    )


def case_facts(case: Case) -> Facts:
    """The facts of a case: its base snapshot after its edits."""
    return apply_edits(base_snapshot(case.base), case.edits)


def cases_by_rule(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """The cases of each rule, keyed as the files name it (code or name)."""
    by_rule: dict[str, list[Case]] = {}
    for case in cases:
        by_rule.setdefault(case.rule, []).append(case)
    return by_rule
