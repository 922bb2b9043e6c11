"""Find the configuration file, and read one file into checked values."""

from __future__ import annotations

import codecs
import contextlib
from pathlib import Path

from attrs import frozen

from ..engine.source import SettingSource
from .nodes import MAX_BYTES, NodeKind, RefusedError, SettingNode, Text
from .problems import ConfigProblem
from .schema import SETTINGS
from .toml_source import read_toml
from .trust import distrust
from .values import Value, ValueReader
from .yaml_source import read_yaml

YAML_NAMES = (".shardlint.yaml", "shardlint.yaml", ".shardlint.yml", "shardlint.yml")
PYPROJECT = "pyproject.toml"


@frozen
class ConfigFile:
    """The file that discovery chose, None when there is none, and warnings about the files that lost."""

    path: Path | None
    warnings: tuple[str, ...] = ()


@frozen
class Loaded:
    """One file, read: its values (None when it cannot be read at all) and everything that is wrong with it."""

    path: Path
    values: Value | None
    problems: tuple[ConfigProblem, ...]


def find_config(start: Path, inspected: tuple[Path, ...] = ()) -> ConfigFile:
    """
    The nearest configuration file in `start` or above, up to the folder that holds `.git`, or the root.

    A file that `distrust` speaks against is passed by with a warning; `inspected` are the folders that are judged. In
    one folder `.shardlint.yaml` beats `shardlint.yaml` beats a `pyproject.toml` with a `[tool.shardlint]` table.
    """
    folder = start.absolute()
    passed_by: list[str] = []
    for place in (folder, *folder.parents):
        names = [name for name in YAML_NAMES if _lies_there(place / name)]
        names += [PYPROJECT] if _has_table(place / PYPROJECT) else []
        if names:
            winner, *losers = names
            why = distrust(place / winner, inspected, folder)
            if not why:
                lost = [f"{shown(place / name)} is not read: {winner} wins over it" for name in losers]
                return ConfigFile(place / winner, (*passed_by, *lost))
            passed_by += [f"{shown(place / name)} is not used: {why}; --config uses it" for name in names]
        if _exists(place / ".git"):
            break
    return ConfigFile(None, tuple(passed_by))


def _lies_there(path: Path) -> bool:
    """
    Whether there is anything of that name. A folder, a pipe or a link to nowhere counts: reading it tells what is
    wrong, while passing it by would lint without the settings that somebody meant.
    """
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


def is_file(path: Path) -> bool:
    """Whether the path is a regular file; one that may not be looked at is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _has_table(path: Path) -> bool:
    """Whether the file has a [tool.shardlint] table, or names shardlint and is not valid TOML (reported when read)."""
    if not is_file(path):
        return False
    try:
        text = _text(path)
        return "shardlint" in text.text and _table(read_toml(text)) is not None
    except RefusedError as error:
        return "tool.shardlint" in error.problem.source_line or _names_table(path)


def _names_table(path: Path) -> bool:
    try:
        return b"[tool.shardlint" in path.read_bytes()[:MAX_BYTES]
    except OSError:
        return False


def shown(path: Path) -> str:
    """The path as it is shown: relative to the working folder when it lies below it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def problem_at(source: SettingSource, key: str, message: str) -> ConfigProblem:
    """A problem with a value that was read before, with the line of its file if that can still be read."""
    text = Text.of(source.file, "")
    if source.line:
        with contextlib.suppress(RefusedError):
            text = _text(Path(source.file))
    return text.problem(source.line, source.column, key, message)


def load_file(path: Path) -> Loaded:
    """Read one file, YAML unless its name ends in `.toml`; never raises for what is in it."""
    try:
        text = _text(path)
        root, problems = _root(path, text)
    except RefusedError as error:
        return Loaded(path, None, (error.problem,))
    reader = ValueReader(text, path.absolute().parent, problems)
    values = SETTINGS.read(root, "", reader)
    ordered = sorted(reader.problems, key=lambda problem: (problem.line, problem.column))
    return Loaded(path, values, tuple(ordered))


def _root(path: Path, text: Text) -> tuple[SettingNode, list[ConfigProblem]]:
    if path.suffix != ".toml":
        return read_yaml(text)
    table = _table(read_toml(text))
    if table is None:
        raise RefusedError(text.problem(0, 0, "", "expected a [tool.shardlint] table, got a file without"))
    return table, []


def _table(root: SettingNode) -> SettingNode | None:
    node = root
    for key in ("tool", "shardlint"):
        entries = node.value if node.kind is NodeKind.MAPPING else ()
        table = next((entry.node for entry in entries if entry.key == key), None)
        if table is None:
            return None
        node = table
    return node


def _text(path: Path) -> Text:
    """The decoded text. Raises `RefusedError` for what is not a regular file, too large, or not UTF-8."""
    name = shown(path)

    def refuse(message: str, line: int = 0, column: int = 0) -> RefusedError:
        return RefusedError(ConfigProblem(file=name, line=line, column=column, message=message))

    try:
        if not path.is_file():
            raise refuse(f"expected a configuration file, got {_instead(path)}")
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise refuse(f"expected a readable file, got the error {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise refuse(f"expected at most {MAX_BYTES} bytes, got a larger file")
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return Text.of(name, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise refuse(f"expected UTF-8 text, got the byte 0x{raw[error.start]:02x}", line, column) from None


def _instead(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    if _exists(path):
        return "something that is not a regular file"
    return "a link that leads nowhere" if path.is_symlink() else "no such file"
