"""The engine's own findings: SL001 to SL010. They cannot be suppressed unless `SUPPRESSIBLE` says so."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from attrs import frozen

from .rule import Finding, Phase, Rule, Severity, SubjectKind

ERROR_TEXT_LIMIT = 2000  # characters of a foreign error's text that evidence keeps


@frozen(kw_only=True)
class PackOrigin:
    """
    The pack that something comes from, and its distribution (empty for a local pack) with its version.

    `root` is the folder or file that holds the pack's code; `issues_url` is where its authors take bug reports.
    """

    pack: str
    dist: str = ""
    version: str = ""
    root: str = ""
    issues_url: str = ""

    @property
    def label(self) -> str:
        """`acme (shardlint-acme 1.2.0)`, or `acme (local pack checks/acme.py)`."""
        if not self.dist:
            return f"{self.pack} (local pack {self.root})" if self.root else f"{self.pack} {self.version}".strip()
        return f"{self.pack} ({self.dist} {self.version})"


@frozen(kw_only=True)
class Diagnostic:
    """One kind of engine diagnostic: its identity and its page."""

    code: str
    name: str
    severity: Severity
    suppressible: bool
    does: str
    why: str
    remedy: str


class PackFault(Exception):  # noqa: N818 - the fault is the pack's, found by shardlint itself
    """What a pack does wrong without raising: the wrong type, the wrong version. `frame` is the place in the pack."""

    def __init__(self, text: str, frame: str = "") -> None:
        super().__init__(text)
        self.frame = frame


DIAGNOSTICS = {
    item.code: item
    for item in (
        Diagnostic(
            code="SL001",
            name="rule-crashed",
            severity=Severity.ERROR,
            suppressible=False,
            does="A rule raised, exited, yielded something that is not a finding of its own, or changed the facts.",
            why="What the rule looks for was not looked for, so a run without its findings proves nothing about it.",
            remedy="Report the crash to the pack's authors with the frame shown; until it is fixed, ignore the rule.",
        ),
        Diagnostic(
            code="SL002",
            name="pack-failed",
            severity=Severity.ERROR,
            suppressible=False,
            does="A pack could not be loaded, or one of its hooks raised.",
            why="None of the rules of that pack (or of that hook) were evaluated.",
            remedy="Mend, upgrade or pin the pack, or leave it out on purpose with --disable-pack.",
        ),
        Diagnostic(
            code="SL003",
            name="unused-suppression",
            severity=Severity.WARNING,
            suppressible=True,
            does="A suppression matched nothing although its rule ran with the facts it needs.",
            why="It will hide a later, different defect of the same name without anybody's decision.",
            remedy="Delete the suppression.",
        ),
        Diagnostic(
            code="SL004",
            name="expired-suppression",
            severity=Severity.ERROR,
            suppressible=False,
            does="A suppression's last day has passed, so it suppresses nothing any more.",
            why="Somebody decided to live with the defect until that day, and no longer.",
            remedy="Fix the defect, or decide again: give a new date with its reason.",
        ),
        Diagnostic(
            code="SL005",
            name="overbroad-suppression",
            severity=Severity.ERROR,
            suppressible=False,
            does="A suppression matched more findings than it expects, so all of them are shown again.",
            why="It would hide findings that nobody had seen when it was written.",
            remedy="Narrow the subject glob, or raise `expect` after looking at every finding.",
        ),
        Diagnostic(
            code="SL006",
            name="unknown-rule",
            severity=Severity.WARNING,
            suppressible=True,
            does="An ignore or a suppression names a rule that no loaded pack has.",
            why="What it was meant to hide may be hidden by nothing, or the name may be misspelt.",
            remedy="Correct the name, install the pack that brings the rule, or delete the entry.",
        ),
        Diagnostic(
            code="SL008",
            name="duplicate-code",
            severity=Severity.ERROR,
            suppressible=False,
            does="Two packs bring a rule with the same code or name, or have the same name themselves.",
            why="Neither of the two could be selected or suppressed by itself, so one or both were left out.",
            remedy="Leave one of the packs out with --disable-pack, and tell the authors of the newer one.",
        ),
        Diagnostic(
            code="SL009",
            name="asked-and-not-done",
            severity=Severity.ERROR,
            suppressible=False,
            does="A flag, a setting or an argument asked for work of which nothing was done.",
            why="A green result would stand for work that nobody did.",
            remedy="Give the run what it lacks (a model, an optimizer, a checkpoint, a trace), or stop asking for it.",
        ),
        Diagnostic(
            code="SL010",
            name="ranks-ask-differently",
            severity=Severity.ERROR,
            suppressible=False,
            does="The ranks of a job were given different settings, rules, packs, versions or arguments.",
            why="What one rank leaves out is not looked for there, so the job's result does not hold for that rank.",
            remedy="Give every rank the same arguments and the same configuration file (`--config`), and install the "
            "same versions on every node.",
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
        remediation=item.remedy,
        key=key,
    )


def describe_error(error: BaseException) -> str:
    """One line for an error that somebody else's code raised: `ValueError: bad shape`. Never raises."""
    text = " ".join(error_text(error).split())
    if isinstance(error, PackFault):
        return text
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def error_text(error: BaseException) -> str:
    """The error's own text, cut at `ERROR_TEXT_LIMIT`. Never raises, even when the error's `__str__` does."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as worse:
        return f"(its text cannot be read: {type(worse).__name__})"
    return text if len(text) <= ERROR_TEXT_LIMIT else text[:ERROR_TEXT_LIMIT] + " ..."


def last_frame(error: BaseException, root: str = "") -> str:
    """
    `file:line in function` of the innermost frame below `root`, a folder or a file.

    Of any frame of somebody's file when `root` is empty; an empty string when there is no such frame. A syntax error
    has no frame in the file that it is in, nor a `PackFault` in the pack, so the place that they name is given.
    """
    if isinstance(error, PackFault):
        return error.frame
    if isinstance(error, SyntaxError) and error.filename and _inside(error.filename, root):
        return f"{error.filename}:{error.lineno} (syntax)"
    frames = ((frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__))
    inside = [(code, line) for code, line in frames if _inside(code.co_filename, root)]
    return code_frame(*inside[-1]) if inside else ""


def _inside(filename: str, root: str) -> bool:
    if filename.startswith("<"):
        return False
    return not root or Path(filename).is_relative_to(root)


def code_frame(code: CodeType | None, line: int | None = None) -> str:
    """`file:line in function` of a code object, at `line` or where it begins."""
    return f"{code.co_filename}:{line or code.co_firstlineno} in {code.co_name}" if code else ""


def rule_crashed(rule: Rule, error: BaseException, origin: PackOrigin) -> Finding:
    """SL001 for a rule of which `error` escaped, naming pack, version and the last frame inside the pack."""
    text = describe_error(error)
    return diagnostic(
        "SL001",
        subject=rule.code,
        message=f"rule {rule.code} {rule.name} of pack {origin.label} crashed: {text}",
        evidence={"rule": rule.code, **_evidence(origin, error)},
    )


def pack_failed(origin: PackOrigin, step: str, error: BaseException) -> Finding:
    """
    SL002 for a pack of which `error` escaped at `step` (`importing it`, `shardlint_rules()`, ...).

    Collectors and reporters of packs are called elsewhere: whoever calls them reports their failures with this.
    """
    text = describe_error(error)
    return diagnostic(
        "SL002",
        subject=origin.pack,
        kind=SubjectKind.PACK,
        message=f"pack {origin.label}: {text if isinstance(error, PackFault) else f'{step} failed: {text}'}",
        evidence={"step": step, **_evidence(origin, error)},
        key=step,
    )


def duplicate(what: str, value: str, origins: Iterable[PackOrigin], outcome: str) -> Finding:
    """SL008 for a code, rule name or pack name (`what`) that several packs claim; `outcome` says who keeps it."""
    claimants = [origin.label for origin in origins]
    return diagnostic(
        "SL008",
        subject=value,
        kind=SubjectKind.PACK if what == "pack name" else SubjectKind.RULE,
        message=f"{what} {value} is claimed by {' and '.join(claimants)}; {outcome}",
        evidence={"what": what, "claimed_by": claimants},
        key=what,
    )


def _evidence(origin: PackOrigin, error: BaseException) -> dict[str, str]:
    """What is known of pack and error; what is unknown, or said by the message already, is left out."""
    fault = isinstance(error, PackFault)
    known = {
        "pack": origin.pack,
        "pack_version": origin.version,
        "dist": origin.dist,
        "issues_url": origin.issues_url,
        "error_type": "" if fault else type(error).__name__,
        "error": "" if fault else error_text(error),
        "frame": last_frame(error, origin.root),
    }
    return {key: value for key, value in known.items() if value}
