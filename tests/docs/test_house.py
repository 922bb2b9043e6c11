"""The command that measures the layout counts what it says, and the layout keeps what it has reached."""

import subprocess
import sys
from pathlib import Path

import pytest

from house import House, figures

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["shardlint.report | shardlint.engine", "shardlint.collect"]
"""
SCHEMA = """
DATA = Table((Key("replay", Boolean(), "..."), Key("fields", NAMES, "...")))
CONTRACT = Table((Key("data", DATA, "..."), Key("probes", ListOf(item=PROBE), "...")))
PROBE = Table((Key("glob", NAME, "..."), Key("replica-check", Boolean(), "...")))
SETTINGS = Table((Key("version", INT, "..."), Key("contract", CONTRACT, "..."), Key("declare", FREE, "...")))
"""
RULE = """
class Rule:
    related_config = ("contract.data.replay",)

    def check(self, facts):
        return [facts.contract.data.fields, *(probe.glob for probe in facts.contract.probes)]
"""


@pytest.fixture
def house(tmp_path):
    files = {
        "pyproject.toml": PYPROJECT,
        "src/shardlint/__init__.py": "",
        "src/shardlint/stray.py": "class Row:\n    pass\n",
        "src/shardlint/config/__init__.py": "",
        "src/shardlint/config/schema.py": SCHEMA,
        "src/shardlint/collect/__init__.py": "from ..report.model import Report\nfrom ..facts import Facts\n",
        "src/shardlint/report/__init__.py": "if TYPE_CHECKING:\n    from ..api import lint\nclass Row:\n    pass\n",
        "src/shardlint/report/model.py": 'found = 1\nheld = f"{found}"\nrow.item = "found"\n',
        "rules/shardlint_rules/rule.py": RULE + "\n\ndef long():\n" + "    ...\n" * 40 + "\n" * 400,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(tmp_path)


def test_each_figure_counts_what_its_title_says(house):
    assert figures(house) == {
        "modules at the top level": ["stray"],
        "modules and folders in no layer": ["config", "stray"],
        "class names with two meanings": ["Row (2)"],
        "settings read by nobody": ["contract.data.replay", "contract.probes[].replica-check", "declare"],
        "climbs on the way of the data": ["collect/__init__.py -> report"],
        "functions over 40 lines": ["rules/shardlint_rules/rule.py:9 long (41)"],
        "files over 400 lines": ["rules/shardlint_rules/rule.py (449)"],
        "uses of `found` as a local name": 2,
        "uses of `item` as a local name": 0,
        "uses of `held` as a local name": 1,
    }


def test_the_command_prints_a_figure_and_a_title_for_each_line():
    command = [sys.executable, str(ROOT / "tests" / "house.py"), str(ROOT)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()] == list(figures(House(ROOT)))
