"""Whatever is written, there are settings or a ConfigError, never anything else; and what is valid means the same."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlint.config import ConfigError, load_settings, render_settings
from shardlint.config.kinds import Boolean, Choice, Date, FilePath, Integer, NumberOrName, String
from shardlint.config.schema import SETTINGS
from shardlint.config.tables import ListOf, MapOf, Table


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("settings")
    (path / ".git").mkdir()
    before = Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


words = st.sampled_from(["a", "D302", "layers.*", "mixed-domain", "x:y", "off", "2026-12-31", "\u00fc"])
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | words | st.just("") | st.floats(0, 1),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)


def valid(kind):
    """Data that the kind accepts."""
    if isinstance(kind, Table):
        required = {key.name: valid(key.kind) for key in kind.keys if key.required}
        optional = {key.name: valid(key.kind) for key in kind.keys if not key.required and key.name != "extends"}
        return st.fixed_dictionaries(required, optional=optional)
    if isinstance(kind, ListOf):
        unique = {"unique_by": lambda item: item[kind.unique]} if kind.unique else {}
        several = st.lists(valid(kind.item), min_size=kind.minimum, max_size=2, **unique)
        return several | valid(kind.item) if kind.bare else several
    if isinstance(kind, MapOf):
        return st.dictionaries(words, valid(kind.value), max_size=2)
    if isinstance(kind, Choice):
        return st.sampled_from(kind.values)
    if isinstance(kind, String):
        if kind.pattern:
            return st.just("package.module:name")
        return st.sampled_from(["D302", "mixed-domain"]) if kind.check else words
    simple = {
        Boolean: st.booleans(),
        Date: st.just("2026-12-31"),
        FilePath: words,
        NumberOrName: words | st.integers(1, 9),
    }
    if isinstance(kind, Integer):
        return st.integers(kind.minimum, kind.maximum or 9)
    return simple.get(type(kind), st.dictionaries(words, junk, max_size=2))


def broken(kind):
    """Data that the kind may accept or not, at any depth."""
    if isinstance(kind, Table):
        return junk | st.fixed_dictionaries({}, optional={key.name: broken(key.kind) for key in kind.keys})
    if isinstance(kind, ListOf):
        return junk | st.lists(broken(kind.item), max_size=2)
    return junk | valid(kind)


def load(data):
    Path("shardlint.yaml").write_text(json.dumps(data, indent=1))
    return load_settings(Path.cwd())


@settings(max_examples=50)
@given(valid(SETTINGS))
def test_valid_settings_are_taken(data):
    found = load(data)
    text = render_settings(found)
    assert found.get("lint.fail-level") == data.get("lint", {}).get("fail-level", "error")
    assert len(found.suppressions) == len(data.get("lint", {}).get("suppress", ()))
    assert (found.contract is None) is ("contract" not in data)
    assert all("  # " in line for line in text.splitlines()[1:])


@settings(max_examples=50)
@given(broken(SETTINGS))
def test_anything_else_is_refused_with_places(data):
    try:
        load(data)
        problems = ()
    except ConfigError as error:
        problems = error.problems
    assert all(problem.file == "shardlint.yaml" and problem.line and problem.column for problem in problems)
    assert all(problem.message.startswith("expected ") and ", got " in problem.message for problem in problems)
    assert list(problems) == sorted(problems, key=lambda problem: (problem.line, problem.column))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends: "a\\0b"\n', r"1:10: expected printable characters, got \x00"),
        ('lint: {options: {D301: {"\\ud800": 1}}}\n', "expected"),
        ("k" * 1000 + ": 1\n", "..."),
        ("k" * 100_000 + ": 1\n", "expected valid YAML"),
    ],
)
def test_hostile_strings(text, message):
    Path("shardlint.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_settings(Path.cwd())
    assert message in str(error.value)
    assert len(str(error.value)) < 3000


def test_a_null_in_a_toml_path():
    Path("x.toml").write_text('[tool.shardlint]\nextends = "a\\u0000b"\n')
    with pytest.raises(ConfigError, match="null character"):
        load_settings(Path.cwd(), explicit=Path("x.toml"))


def test_a_loop_of_links_is_no_file():
    Path("loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(ConfigError, match="expected a configuration file"):
        load_settings(Path.cwd(), explicit=Path("loop.yaml"))
    Path("x.yaml").write_text("extends: loop.yaml\n")
    with pytest.raises(ConfigError, match="which is not a file"):
        load_settings(Path.cwd(), explicit=Path("x.yaml"))


@pytest.mark.timeout(60)
def test_thousands_of_unknown_keys_are_told_in_short():
    Path("shardlint.yaml").write_text("".join(f"selec{number}: 1\n" for number in range(40_000)))
    with pytest.raises(ConfigError) as error:
        load_settings(Path.cwd())
    assert len(error.value.problems) == 40_000
    assert "and 39950 more problems" in str(error.value)
