"""Every test that the parity table names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seed-parity.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.(?:py::\w+|yaml))`", PAGE)))


def test_the_table_names_tests():
    assert len(NAMED) > 40
    rows = [
        line
        for line in PAGE.splitlines()
        if line.startswith("| ") and not line.startswith(("| behaviour", "| row", "| ---"))
    ]
    assert all("`" in row.rsplit("|", 2)[1] for row in rows)


def test_every_row_says_how_it_stands():
    rows = re.findall(r"^\| ([A-Z][0-9]+\S*) \| .* \| (same|better|differs|open)\b[^|]*\| `", PAGE, re.MULTILINE)
    assert len(rows) == len({row for row, _ in rows}) == 370
    for status in ("same", "better", "open"):
        assert f"`{status}`: {sum(said == status for _, said in rows)}" in PAGE


@pytest.mark.parametrize("name", NAMED)
def test_it_exists(name):
    path, _, function = name.partition("::")
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    assert not function or re.search(rf"^def {function}\(", text, re.MULTILINE)
