"""
The settings: one table gives the reader, the JSON Schema and the reference.

To add a setting, add one `Key` line here; it is then read, checked, shown by `config show`, described by
`config schema`, and found in `Settings.get("dotted.key")`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..contract import COMPARISONS, LIFECYCLE_PHASES, PROBE_STAGES
from ..engine.suppressions import check_rule
from ..facts.checkpoint import TORCH_DTYPES
from .kinds import Boolean, Choice, Date, FilePath, Integer, NumberOrName, String
from .tables import Free, Key, ListOf, MapOf, Table

VERSION = 1
CAST_DTYPES = tuple(sorted(TORCH_DTYPES.values()))
LEVELS = ("error", "warning", "info")
_CHECKER = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"


def _checker(text: str) -> str:
    if not re.fullmatch(_CHECKER, text, re.ASCII):
        raise ValueError(f"expected package.module:name, got {text!r}")
    return text


_NAME = String(wanted="a name")
_GLOB = String(wanted="a glob")
_NAMES = ListOf(item=_NAME, bare=True)
_GLOBS = ListOf(item=_GLOB, bare=True)
_SOME_NAMES = ListOf(item=_NAME, bare=True, minimum=1)
_SOME_GLOBS = ListOf(item=_GLOB, bare=True, minimum=1)
_TIE = ListOf(item=_GLOB, minimum=2)
_SELECTORS = ListOf(item=String(wanted="a selector"), bare=True)
_IMPORT = String(wanted="package.module:name", check=_checker, pattern=f"^{_CHECKER}$")
_SUPPRESSIBLE = String(wanted="the code or name of a rule", check=check_rule)

PROBE = Table(
    (
        Key("glob", _GLOB, "Case-sensitive glob over parameter FQNs.", required=True),
        Key("required", Boolean(), "Whether it is an error when it matches no parameter.", default=True),
        Key("stages", ListOf(item=Choice(PROBE_STAGES), bare=True), "When values are compared. Without effect (D109)."),
        Key("comparison", Choice(COMPARISONS), "How values are compared. Without effect (D109).", default="exact"),
        Key("replica-check", Boolean(), "Whether replicas must be equal. Without effect (D109).", default=False),
    ),
    short="glob",
)
INVARIANT = Table(
    (
        Key("name", _NAME, "The invariant's name.", required=True),
        Key("checker", _IMPORT, "The function that checks it, as package.module:name.", required=True),
        Key("phase", _NAME, f"{', '.join(LIFECYCLE_PHASES)}; D101 reports any other.", default="structure"),
    )
)
DATA = Table(
    (
        Key("forward-fields", _NAMES, "Fields that every forward call must have."),
        Key("runtime-fields", _NAMES, "Fields that the pipeline must provide at run time."),
        Key(
            "context-parallel-replicated",
            _NAMES,
            "Fields that are replicated along context parallelism. Without effect (D109).",
        ),
        Key("modality-fields", MapOf(value=_SOME_NAMES), "The fields of each modality."),
        Key("modality-parameters", MapOf(value=_SOME_GLOBS), "Globs of the parameters of each modality."),
        Key("labels-shifted", Boolean(), "Whether the pipeline shifts the labels."),
        Key(
            "deterministic-replay",
            Boolean(),
            "Whether batches must be replayable. Without effect (D109).",
            default=False,
        ),
        Key("processor-revision-required", Boolean(), "Whether the processor must be pinned.", default=False),
    )
)
SHARED_STATE = Table(
    (
        Key("name", _NAME, "The state's name.", required=True),
        Key("producers", _SOME_GLOBS, "The modules that produce it.", required=True),
        Key("consumers", _SOME_GLOBS, "The modules that consume it.", required=True),
    )
)
TOPOLOGY = Table(
    (
        Key("name", _NAME, "The constraint's name.", required=True),
        Key("axis", _NAME, "The mesh axis.", required=True),
        Key("divides", NumberOrName("a number or a configuration key"), "What its size must divide."),
        Key("minimum", Integer(minimum=1), "The smallest size."),
        Key("maximum", Integer(minimum=1), "The largest size."),
    )
)
PARITY_CASE = Table(
    (
        Key("name", _NAME, "The case's name.", required=True),
        Key("module", _GLOB, "Glob over module FQNs.", required=True),
        Key("reference", _IMPORT, "What computes the same, as package.module:name.", required=True),
        Key("comparison", Choice(COMPARISONS), "How values are compared.", default="numeric"),
    )
)
REPLACEMENT = Table(
    (
        Key("pattern", _GLOB, "Glob over module FQNs or class names: what was to be replaced.", required=True),
        Key("replacement", _GLOB, "Glob over the class name that must stand there.", default="*"),
    ),
    short="pattern",
)
RECIPE = Table(
    (
        Key("buffer", _GLOB, "Glob over buffer FQNs.", required=True),
        Key("recipe", _IMPORT, "The function that computes such a buffer, as package.module:name.", required=True),
    )
)
CONTRACT = Table(
    (
        Key("name", _NAME, "The contract's name, for reports."),
        Key("probes", ListOf(item=PROBE), "Parameters that must be there."),
        Key(
            "invariants", ListOf(item=INVARIANT, unique="name"), "Conditions on the live model, each with its checker."
        ),
        Key("training-only-targets", _GLOBS, "Live tensors that have no checkpoint source on purpose."),
        Key("inference-only-sources", _GLOBS, "Checkpoint keys that have no live target on purpose."),
        Key(
            "logical-shapes",
            MapOf(value=ListOf(item=Integer(minimum=1), minimum=1)),
            "The global shape without padding of tensors whose storage is larger, by glob.",
        ),
        Key("data", DATA, "What the model expects of its batches."),
        Key("shared-state", ListOf(item=SHARED_STATE, unique="name"), "State that modules share during a step."),
        Key("topology", ListOf(item=TOPOLOGY), "Bounds on the sizes of mesh axes, for D318."),
        Key(
            "parity-cases",
            ListOf(item=PARITY_CASE, unique="name"),
            "Modules that must compute what a reference does. Without effect (D109).",
        ),
        Key("replacements", ListOf(item=REPLACEMENT), "Module replacements that must have happened."),
        Key("placeholders", _GLOBS, "Globs over the names of classes that must not be left in the final tree."),
        Key("lazy-buffers", _GLOBS, "Buffers that are built at first use, so that meta is right before."),
        Key("ties", ListOf(item=_TIE), "Groups of globs over tensors: each group is one tensor under several names."),
        Key("recipes", ListOf(item=RECIPE), "How buffers are computed from the configuration, for D404."),
    )
)
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
        Key("from", String(wanted="a key or pattern"), "The checkpoint's key, or a pattern.", required=True),
        Key("to", String(wanted="a key or pattern"), "The live tensor's name.", required=True),
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
        Key("contract", CONTRACT, "What the model's owner declares."),
        Key("checkpoint", CHECKPOINT, "How the checkpoint is read."),
        Key("expert-axes", _NAMES, "Names of the mesh axes over which experts are distributed."),
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
