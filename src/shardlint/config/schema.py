"""
The settings: one table gives the reader, the JSON Schema and the reference.

To add a setting, add one `Key` line here; it is then read, checked, shown by `config show`, described by
`config schema`, and found in `Settings.get("dotted.key")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..contract import LIFECYCLE_PHASES
from ..engine.suppressions import check_rule
from ..facts.checkpoint import TORCH_DTYPES
from .contract_table import contract_table
from .kinds import Boolean, Choice, Date, FilePath, Integer, String
from .tables import Free, Key, ListOf, MapOf, Table

VERSION = 1
CAST_DTYPES = tuple(sorted(TORCH_DTYPES.values()))
LEVELS = ("error", "warning", "info")
_NAME = String(wanted="a name")
_GLOB = String(wanted="a glob")
_NAMES = ListOf(item=_NAME, bare=True)
_SELECTORS = ListOf(item=String(wanted="a selector"), bare=True)
_SUPPRESSIBLE = String(wanted="the code or name of a rule", check=check_rule)

PACKS = Table(
    (
        Key("require", _NAMES, "Packs without which the run cannot be trusted.", appends=True),
        Key("disable", _NAMES, "Packs that are left out.", appends=True),
        Key(
            "local",
            ListOf(item=FilePath(), bare=True),
            "Packs by path, relative to this file; their code runs.",
            appends=True,
        ),
    )
)
SUPPRESSION = Table(
    (
        Key("rule", ListOf(item=_SUPPRESSIBLE, bare=True, minimum=1), "Exact codes or names.", required=True),
        Key("subject", _GLOB, "Glob over dotted segments: `*` is one segment, `**` any number.", required=True),
        Key("reason", String(wanted="a reason"), "Why it is suppressed.", required=True),
        Key("expires", Date(), "The last day on which it holds."),
        Key("expect", Integer(minimum=1), "The most findings that it may hide."),
    )
)
LINT = Table(
    (
        Key("select", _SELECTORS, "The rules to run; replaces the inherited selection instead of changing it."),
        Key("extend-select", _SELECTORS, "Rules to run as well.", appends=True),
        Key("ignore", _SELECTORS, "Rules not to run.", appends=True),
        Key("fail-level", Choice((*LEVELS, "never")), "The lowest severity that fails the run.", default="error"),
        Key("severity", MapOf(value=Choice(("off", *reversed(LEVELS)))), "The severity of rules, by selector."),
        Key("options", MapOf(value=Free(mapping=True)), "The options of rules, by code or name."),
        Key("heavy", Boolean(), "Whether heavy rules run.", default=False),
        Key("suppress", ListOf(item=SUPPRESSION), "Known findings that are not shown.", appends=True),
    )
)
RENAME = Table(
    (
        Key(
            "from",
            String(wanted="a regular expression"),
            "A regular expression, searched in every stored key: `^` binds it to the beginning, `\\.` is a dot.",
            required=True,
        ),
        Key("to", String(wanted="a replacement"), "What replaces it, as in `re.sub`; `\\1` is group 1.", required=True),
    )
)
FUSION = Table(
    (
        Key(
            "from",
            ListOf(item=String(wanted="a key or pattern"), minimum=2),
            "The keys that are put together, in order; each `*` is the same text in all and in `to`.",
            required=True,
        ),
        Key("to", String(wanted="a key or pattern"), "The key of the whole.", required=True),
        Key("dim", Integer(minimum=0), "The dimension along which they are put together.", default=0),
    )
)
CHECKPOINT = Table(
    (
        Key("renames", ListOf(item=RENAME), "How checkpoint keys are renamed, in order."),
        Key(
            "allow-cast",
            ListOf(item=Choice(CAST_DTYPES), bare=True),
            "Dtypes that a checkpoint may have on purpose where its --reference has another one.",
        ),
        Key(
            "fuse",
            ListOf(item=FUSION),
            "Tensors of one checkpoint that its --reference stores as one, or the other way round.",
        ),
        Key("allow-overlay", Boolean(), "Whether files may hold tensors that the index maps elsewhere.", default=False),
    )
)
REPORT = Table((Key("output-format", ListOf(item=String(wanted="NAME or NAME:FILE"), bare=True), "Output formats."),))
SETTINGS = Table(
    (
        Key("version", Integer(minimum=VERSION, maximum=VERSION), "The version of this format.", default=VERSION),
        Key("extends", ListOf(item=FilePath(), bare=True), "Files whose settings this file takes over and edits."),
        Key("packs", PACKS, "Packs of rules."),
        Key("lint", LINT, "Which rules run, and what is done with their findings."),
        Key("contract", contract_table(), "What the model's owner declares."),
        Key("checkpoint", CHECKPOINT, "How the checkpoint is read."),
        Key("expert-axes", _NAMES, "Names of the mesh axes over which experts are distributed."),
        Key(
            "invariant-phases",
            ListOf(item=Choice(LIFECYCLE_PHASES), bare=True),
            "The phases whose invariants are evaluated; without it all, runtime with a trace alone.",
        ),
        Key("report", REPORT, "What is reported."),
    ),
    wanted="a mapping of settings",
)


def config_schema() -> dict[str, Any]:
    """The JSON Schema of `shardlint.yaml` and of `[tool.shardlint]`."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "shardlint settings",
        "description": "shardlint.yaml, or [tool.shardlint] in pyproject.toml",
    }
    return head | SETTINGS.schema()


def all_keys(table: Table = SETTINGS, path: str = "") -> Iterator[tuple[str, Key]]:
    """Every key with its dotted path; the keys of the items of a list stand under `path[]`."""
    for key in table.keys:
        inner = f"{path}.{key.name}" if path else key.name
        yield inner, key
        if isinstance(key.kind, Table):
            yield from all_keys(key.kind, inner)
        elif isinstance(key.kind, ListOf) and isinstance(key.kind.item, Table):
            yield from all_keys(key.kind.item, f"{inner}[]")


def config_reference() -> str:
    """Every setting as a Markdown table: key, what it takes, default, what it is for."""
    rows = ["| key | expects | default | meaning |", "| --- | --- | --- | --- |"]
    for path, key in all_keys():
        default = "required" if key.required else "" if key.default is None else f"`{_shown(key.default)}`"
        meaning = key.doc + (" Added to what is inherited." if key.appends else "")
        rows.append(f"| `{path}` | {key.kind.wanted} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
