"""The tried ranges stand in one place, and every page that names them says the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from shardlint import lint_facts
from shardlint.facts import Environment, Facts, FrozenDict
from shardlint.versions import TRIED, limits, untried
from versions.table import CI_RELEASES, RELEASES

ROOT = Path(__file__).parents[1]


def test_the_bounds_are_those_of_the_matrix_and_of_the_package() -> None:
    assert TRIED["transformers"] == (RELEASES[0], RELEASES[-1]) == (CI_RELEASES[0], CI_RELEASES[-1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["hf"] == [f"transformers>={TRIED['transformers'][0]}"]
    assert f"torch>={TRIED['torch'][0].removesuffix('.0')}" in project["dependencies"]


@pytest.mark.parametrize("page", ["README.md", "docs/versions.md"])
def test_the_pages_name_the_bounds(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    for name, (oldest, newest) in (("Transformers", TRIED["transformers"]), ("torch", TRIED["torch"])):
        assert f"{name} {oldest} to {newest}" in text


def test_the_page_holds_a_row_for_every_release() -> None:
    rows = [line.split("|")[1].strip() for line in (ROOT / "docs/versions.md").read_text().splitlines() if "|" in line]
    assert [name for name in rows if name in RELEASES] == list(RELEASES)


@pytest.mark.parametrize(
    ("version", "outside"),
    [("4.48.2", True), ("4.48.3", False), ("5.24.0", False), ("5.24.0.dev0", False), ("5.25.0", True), ("odd", False)],
)
def test_a_version_outside_of_the_range_is_said_once_in_the_head(version: str, outside: bool) -> None:
    versions = FrozenDict({"transformers": version, "torch": "2.13.0+cpu"})
    assert bool(untried(versions)) is outside
    text = str(lint_facts(Facts(environment=Environment(versions=versions))))
    assert text.count("is outside of what was tried") == outside


def test_what_an_old_release_limits() -> None:
    assert limits({"transformers": "5.24.0", "torch": "2.13.0"}) == []
    assert any("bitsandbytes" in line for line in limits({"transformers": "4.57.6"}))
