"""The engine's own findings: SL001 to SL008. They cannot be suppressed unless `SUPPRESSIBLE` says so."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from .rule import Finding, Phase, Severity, SubjectKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .runner import SelectedRule


@frozen(kw_only=True)
class Diagnostic:
    """One kind of engine diagnostic: its identity and its page."""

    code: str
    name: str
    severity: Severity
    suppressible: bool
    does: str
    why: str
    todo: str


DIAGNOSTICS = {
    item.code: item
    for item in (
        Diagnostic(
            code="SL001",
            name="rule-crashed",
            severity=Severity.ERROR,
            suppressible=False,
            does="A rule raised, exited, yielded something that is no finding of its own, or changed the facts.",
            why="What the rule looks for was not looked for, so a run without its findings proves nothing about it.",
            todo="Report the crash to the pack's authors with the frame shown; until it is mended, ignore the rule.",
        ),
        Diagnostic(
            code="SL002",
            name="pack-failed",
            severity=Severity.ERROR,
            suppressible=False,
            does="A pack could not be loaded, or one of its hooks raised.",
            why="None of the rules of that pack (or of that hook) were evaluated.",
            todo="Mend, upgrade or pin the pack, or leave it out on purpose with --disable-pack.",
        ),
        Diagnostic(
            code="SL003",
            name="unused-suppression",
            severity=Severity.WARNING,
            suppressible=True,
            does="A suppression matched nothing although its rule ran with the facts it needs.",
            why="It will hide a later, different defect of the same name without anybody's decision.",
            todo="Delete the suppression.",
        ),
        Diagnostic(
            code="SL004",
            name="expired-suppression",
            severity=Severity.ERROR,
            suppressible=False,
            does="A suppression's last day has passed, so it suppresses nothing any more.",
            why="Somebody decided to live with the defect until that day, and no longer.",
            todo="Mend the defect, or decide anew: give a new date with its reason.",
        ),
        Diagnostic(
            code="SL005",
            name="overbroad-suppression",
            severity=Severity.ERROR,
            suppressible=False,
            does="A suppression matched more findings than it expects, so all of them are shown again.",
            why="It would hide findings that nobody had seen when it was written.",
            todo="Narrow the subject glob, or raise `expect` after looking at every finding.",
        ),
        Diagnostic(
            code="SL006",
            name="unknown-rule",
            severity=Severity.WARNING,
            suppressible=True,
            does="An ignore or a suppression names a rule that no loaded pack has.",
            why="What it was meant to hide may be hidden by nothing, or the name may be misspelt.",
            todo="Correct the name, install the pack that brings the rule, or delete the entry.",
        ),
        Diagnostic(
            code="SL008",
            name="duplicate-code",
            severity=Severity.ERROR,
            suppressible=False,
            does="Two packs bring a rule with the same code or name.",
            why="One of the two rules cannot be selected or suppressed by itself, so neither claim was accepted.",
            todo="Leave one of the packs out with --disable-pack, and tell the authors of the newer one.",
        ),
    )
}


def diagnostic(
    code: str,
    *,
    subject: str,
    message: str,
    kind: SubjectKind = SubjectKind.RULE,
    evidence: Mapping[str, Any] | None = None,
    key: str = "",
) -> Finding:
    """Build the finding of the engine diagnostic `code`."""
    item = DIAGNOSTICS[code]
    return Finding(
        code=code,
        name=item.name,
        phase=Phase.ENGINE,
        severity=item.severity,
        subject=subject,
        kind=kind,
        message=message,
        evidence=dict(evidence or {}),
        why=item.why,
        remediation=item.todo,
        key=key,
    )


def last_frame(error: BaseException, root: str = "") -> str:
    """`file:line in function` of the innermost frame below the folder `root` (of any frame when there is none)."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if root and Path(frame.filename).is_relative_to(root)] or list(frames)
    if not inside:
        return ""
    frame = inside[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"


def rule_crashed(item: SelectedRule, error: BaseException) -> Finding:
    """SL001 for a rule of which `error` escaped, naming pack, version and the last frame inside the pack."""
    pack = f"{item.pack} {item.pack_version}".strip()
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return diagnostic(
        "SL001",
        subject=item.rule.code,
        message=f"rule {item.rule.code} {item.rule.name} of pack {pack} crashed: {text}",
        evidence={
            "rule": item.rule.code,
            "pack": item.pack,
            "pack_version": item.pack_version,
            "error_type": type(error).__name__,
            "error": str(error),
            "frame": last_frame(error, item.pack_root),
        },
    )
