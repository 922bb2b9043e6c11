"""`CONTRIBUTING.md` and `docs/architecture.md` are true: the places that they name exist, and no place is forgotten."""

import re
import tomllib
from pathlib import Path

import pytest

from shardlint_rules.pack import shardlint_rules

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
RULES = shardlint_rules()
RANGE = re.compile(r"\(([DV]\d\d\d)-([DV]\d\d\d)\)")
NEW_RULE = CONTRIBUTING.partition("## Adding a rule")[2].partition("\n## ")[0]
ROOMS = re.findall(
    r"^  (\w+)(?:/|\.py)", ARCHITECTURE.partition("src/shardlint/\n")[2].partition("```")[0], re.MULTILINE
)


def rooms():
    """The folders and modules of shardlint, but for those that only Python and the packaging need."""
    paths = [
        path
        for path in (ROOT / "src" / "shardlint").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    return {path.stem for path in paths if not path.stem.startswith("_")}


def test_the_changelog_counts_the_rules():
    number = re.search(r"^- (\d+) rules over", CHANGELOG, re.MULTILINE)
    assert number is not None
    assert int(number[1]) == len(RULES), "CHANGELOG.md: put the new number of rules"


@pytest.mark.parametrize("phase", sorted({rule.code[:2] for rule in RULES}))
def test_the_changelog_names_the_first_and_last_code_of_each_phase(phase):
    codes = sorted(rule.code for rule in RULES if rule.code.startswith(phase))
    ranges = [pair for pair in RANGE.findall(CHANGELOG) if pair[0].startswith(phase)]
    assert ranges == [(codes[0], codes[-1])], f"CHANGELOG.md: put the codes of the phase {phase}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_is_at_every_place_that_the_page_names(rule):
    """Each place of the table, with the rule's own code and name in the place of the example's."""
    module = rule.name.replace("-", "_")
    folder = rule.__module__.split(".")[1]
    places = {
        f"rules/shardlint_rules/{folder}/{module}.py": f'code = "{rule.code}"',
        "tests/rules/codes.txt": f"{rule.code} {rule.name}\n",
        f"docs/rules/{rule.code}-{rule.name}.md": f"# {rule.code} {rule.name}\n",
        "docs/rules/index.md": f"[{rule.code}]({rule.code}-{rule.name}.md)",
    }
    if rule.cost.value == "light":
        places[f"tests/rules/{folder}/{module}.yaml"] = f"rule: {rule.code}\n"
    missing = [
        place for place, text in places.items() if not (ROOT / place).exists() or text not in (ROOT / place).read_text()
    ]
    assert missing == [], f"{rule.code} is missing at these places: see CONTRIBUTING.md"


def _holds(path, text):
    return path.exists() and text in path.read_text()


def test_the_page_names_every_place_that_is_tested():
    named = set(re.findall(r"`([\w./*-]+\.\w+)`", NEW_RULE))
    assert {
        "rules/shardlint_rules/d5_checkpoint/my_rule.py",
        "tests/rules/codes.txt",
        "tests/rules/d5_checkpoint/my_rule.yaml",
        "tests/rules/d5_checkpoint/test_live_*.py",
        "docs/rules/D526-my-rule.md",
        "docs/rules/index.md",
        "README.md",
        "CHANGELOG.md",
    } <= named
    existing = [name for name in named if "my_rule" not in name and "my-rule" not in name and "/" in name]
    assert [name for name in existing if not list(ROOT.glob(name))] == []


def test_the_set_up_is_the_command_of_the_readme():
    command = re.search(r"<!-- tests -->\n(```bash\n.*?```)", (ROOT / "README.md").read_text(), re.DOTALL)
    assert command is not None
    assert command[1] in CONTRIBUTING


def test_the_tree_has_one_line_for_each_room():
    assert sorted(ROOMS) == sorted(rooms())


def test_the_layers_are_those_of_the_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    block = ARCHITECTURE.partition("## Layers")[2].partition("```\n")[2].partition("```")[0]
    assert block.splitlines() == [layer.replace("shardlint.", "") for layer in layers]
