"""The page about security names limits that exist."""

import importlib
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def test_every_limit_of_the_page_exists_and_has_its_value():
    values = {}
    for row in re.findall(r"^\| .* \|$", PAGE, re.MULTILINE):
        names = re.findall(r"`([A-Za-z_.]+)`", row.rsplit("|", 2)[1])
        for name in names:
            module, _, constant = names[0].rpartition(".")
            constant = constant if name == names[0] else name
            values[constant] = getattr(importlib.import_module(f"shardlint.{module}"), constant)
    assert values["MAX_HEADER"] == 100_000_000
    assert values["MAX_LISTED"] == 20_000
    assert values["MAX_DIMS"] == 64
    assert (values["CPU_SECONDS"], values["MEMORY"]) == (20, 4 * 2**30)
    assert values["FINDING_LIMIT"] == 300_000
    assert values["WALL_SECONDS"] == 120
    assert values["MAX_FOLDERS"] == 200
    assert values["COUNT_LIMIT"] == 3_000_000
    assert values["MAX_FACTS"] == 2**30
