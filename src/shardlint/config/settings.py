"""The settings of a run: found, read with everything they extend, checked, merged and frozen."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from ..engine.selection import Item, Layer, SeverityItem, severity_from_user
from ..engine.source import DEFAULT, SettingSource
from ..engine.suppressions import Suppression
from ..facts import EMPTY, FrozenDict
from ..rule import Severity
from ..target import Fusion
from .files import find_config, is_file, load_file, problem_at, shown
from .merge import merge
from .problems import ConfigError, ConfigProblem
from .schema import all_keys
from .trust import inspected_folders
from .values import Value

MAX_EXTENDS = 20
_DEFAULTS = {path: key.default for path, key in all_keys() if key.default is not None}


@frozen(kw_only=True)
class PackSettings:
    """Which packs must be there, which are left out, and which are loaded by path (absolute)."""

    require: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    local: tuple[Path, ...] = ()


@frozen(kw_only=True)
class CheckpointSettings:
    """
    How the checkpoint is read: renames as (from, to), and whether shadow tensors are meant.

    `allow_cast` and `fusions` are for the comparison with another checkpoint.
    """

    renames: tuple[tuple[str, str], ...] = ()
    allow_cast: tuple[str, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    allow_overlay: bool = False


@frozen(kw_only=True)
class Settings:
    """
    The resolved settings.

    `file` is the file that was found or named, None when there is none; `files` are all that were read, those that
    are extended first. `layers` are the selection settings of each file in that order, for `select_rules`.
    `values` holds everything that was set, merged; `get` reads it by dotted key. `warnings` are to be shown.
    `fail_level` is None for never. `contract` is plain data for `contract_from_mapping`, None when not set.
    """

    file: Path | None = None
    files: tuple[Path, ...] = ()
    values: Value = field(default=Value({}), repr=False)
    warnings: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    suppressions: tuple[Suppression, ...] = ()
    packs: PackSettings = PackSettings()
    fail_level: Severity | None = Severity.ERROR
    heavy: bool = False
    options: FrozenDict = EMPTY
    contract: FrozenDict | None = None
    checkpoint: CheckpointSettings = CheckpointSettings()
    expert_axes: tuple[str, ...] = ()
    invariant_phases: tuple[str, ...] = ()
    output_format: tuple[str, ...] = ()

    def get(self, key: str) -> Any:
        """The plain value of a dotted key such as `lint.heavy`; its default when it was not set, else None."""
        value = self.values.get(*key.split("."))
        return _DEFAULTS.get(key) if value is None else value.plain()

    def source(self, key: str) -> SettingSource:
        """Where the value of a dotted key stands."""
        value = self.values.get(*key.split("."))
        return DEFAULT if value is None else value.source


def load_settings(
    start: Path,
    *,
    explicit: Path | None = None,
    isolated: bool = False,
    inspected: Iterable[str | os.PathLike[str] | None] = (),
) -> Settings:
    """
    Find and read the settings for the folder (or file) `start`.

    `inspected` are the target, checkpoint and reference, whose own settings are not used, with a warning. `explicit`
    names the file to read instead of looking for one; `isolated` reads none. Raises `ConfigError` with
    everything that is wrong in the file and in those that it extends.
    """
    if isolated:
        return Settings()
    if explicit is not None:
        return _load(explicit, ())
    file = find_config(start.parent if is_file(start) else start, inspected_folders(inspected))
    return Settings(warnings=file.warnings) if file.path is None else _load(file.path, file.warnings)


def _load(path: Path, warnings: tuple[str, ...]) -> Settings:
    chain = _Chain()
    chain.add(path, (), None)
    if chain.problems:
        raise ConfigError(chain.ordered_problems())
    values = Value({})
    for _, file_values in chain.files:
        values = merge(values, file_values)
    settings = Settings(
        file=path, files=tuple(file for file, _ in chain.files), warnings=warnings, layers=chain.layers()
    )
    return _filled(settings, values)


class _Chain:
    """A file and all that it extends, each once, those that are extended first."""

    def __init__(self) -> None:
        self.files: list[tuple[Path, Value]] = []
        self.problems: list[ConfigProblem] = []
        self._done: set[Path] = set()
        self._opened: list[str] = []

    def add(self, path: Path, above: tuple[Path, ...], named_at: Value | None) -> None:
        """Read `path` unless that was done. `above` are the files that led here, `named_at` the `extends` item."""
        real = path.resolve() if is_file(path) else path
        if real in above or len(above) >= MAX_EXTENDS:
            self._cycle(real, above, named_at)
            return
        if real in self._done:
            return
        if named_at is not None and not is_file(path):
            message = f"expected a configuration file, got {shown(path)}, which is not a file"
            self.problems.append(problem_at(named_at.source, named_at.source.text, message))
            return
        self._done.add(real)
        self._opened.append(shown(path))
        loaded = load_file(path)
        self.problems.extend(loaded.problems)
        if loaded.values is None:
            return
        extended = loaded.values.get("extends")
        for parent in extended.data if extended else ():
            self.add(Path(parent.data), (*above, real), parent)
        self.files.append((path, loaded.values))

    def _cycle(self, real: Path, above: tuple[Path, ...], named_at: Value | None) -> None:
        source = named_at.source if named_at else DEFAULT
        if real in above:
            ring = " -> ".join(shown(file) for file in (*above[above.index(real) :], real))
            message = f"expected files that do not extend each other, got the cycle {ring}"
        else:
            message = f"expected at most {MAX_EXTENDS} files extending one another, got more"
        self.problems.append(problem_at(source, source.text, message))

    def ordered_problems(self) -> list[ConfigProblem]:
        """All problems: those of the extending file first, each file's from top to bottom."""
        order = {name: at for at, name in reversed(list(enumerate(self._opened)))}
        return sorted(
            self.problems, key=lambda problem: (order.get(problem.file, len(order)), problem.line, problem.column)
        )

    def layers(self) -> tuple[Layer, ...]:
        """The selection settings of every file."""
        return tuple(_layer(values.get("lint") or Value({})) for _, values in self.files)


def _layer(lint: Value) -> Layer:
    select = lint.get("select")
    severity = lint.get("severity") or Value({})
    return Layer(
        select=None if select is None else _items(select),
        extend_select=_items(lint.get("extend-select")),
        ignore=_items(lint.get("ignore")),
        severity=tuple(
            SeverityItem(selector, severity_from_user(level.data), level.source)
            for selector, level in severity.data.items()
        ),
        select_source=select.source if select else DEFAULT,
    )


def _items(value: Value | None) -> tuple[Item, ...]:
    return tuple(Item(entry.data, entry.source) for entry in value.data) if value else ()


def _filled(settings: Settings, values: Value) -> Settings:
    bare = evolve(settings, values=values)
    packs = _plain(values, "packs")
    contract = values.get("contract")
    level = bare.get("lint.fail-level")
    return evolve(
        bare,
        suppressions=tuple(_suppressions(values)),
        packs=PackSettings(
            require=tuple(packs.get("require", ())),
            disable=tuple(packs.get("disable", ())),
            local=tuple(Path(entry) for entry in packs.get("local", ())),
        ),
        fail_level=None if level == "never" else Severity(level),
        heavy=bool(bare.get("lint.heavy")),
        options=FrozenDict(_plain(values, "lint", "options")),
        contract=None if contract is None else FrozenDict(contract.plain()),
        checkpoint=CheckpointSettings(
            renames=tuple((entry["from"], entry["to"]) for entry in bare.get("checkpoint.renames") or ()),
            allow_cast=tuple(bare.get("checkpoint.allow-cast") or ()),
            fusions=tuple(
                Fusion(sources=tuple(entry["from"]), target=entry["to"], dim=entry.get("dim", 0))
                for entry in bare.get("checkpoint.fuse") or ()
            ),
            allow_overlay=bool(bare.get("checkpoint.allow-overlay")),
        ),
        expert_axes=tuple(bare.get("expert-axes") or ()),
        invariant_phases=tuple(bare.get("invariant-phases") or ()),
        output_format=tuple(bare.get("report.output-format") or ()),
    )


def _plain(values: Value, *keys: str) -> Mapping[str, Any]:
    value = values.get(*keys)
    return value.plain() if value else {}


def _suppressions(values: Value) -> Iterator[Suppression]:
    value = values.get("lint", "suppress")
    for entry in value.data if value else ():
        plain = entry.plain()
        yield Suppression(
            rules=tuple(plain["rule"]),
            subject=plain["subject"],
            reason=plain["reason"],
            expires=plain.get("expires"),
            expect=plain.get("expect"),
            source=entry.source,
        )
