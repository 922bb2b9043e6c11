"""`docs/packs.md` says what is true: its code is the code of `tests/packs/acme`, and its local pack runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from shardlint import PackInfo, Rule
from shardlint.facts.codec import encode_facts
from shardlint.plugins.loading import HOOKS
from support.packs import sample_facts, tensor

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "packs.md").read_text()
BLOCK = re.compile(r"<!-- (from|local:) (\S+) -->\n```\w+\n(.*?)\n```", re.DOTALL)
BLOCKS = [match.groups() for match in BLOCK.finditer(PAGE)]
QUOTED = [(name, text) for kind, name, text in BLOCKS if kind == "from"]
LOCAL = {name: text for kind, name, text in BLOCKS if kind == "local:"}


def test_the_page_quotes_every_kind_of_file() -> None:
    assert {Path(name).name for name, _ in QUOTED} == {"pyproject.toml", "pack.py", "rules.py"}
    assert set(LOCAL) == {"shardlint.yaml", "checks/house_rules.py"}


@pytest.mark.parametrize(("name", "text"), QUOTED, ids=[f"{index}-{name}" for index, (name, _) in enumerate(QUOTED)])
def test_quoted_code_is_the_code(name: str, text: str) -> None:
    assert text in (ROOT / name).read_text(), f"docs/packs.md quotes something else than {name} holds"


def test_every_hook_and_every_attribute_is_explained() -> None:
    wanted = [*HOOKS, *(item.name for item in attrs.fields(PackInfo))]
    wanted += [name for name in Rule.__annotations__ if name != "page"]
    assert [name for name in wanted if f"`{name}" not in PAGE] == []


@pytest.mark.parametrize(("fqn", "status"), [("layers.0.weight", 1), ("norm.weight", 0)])
def test_the_local_pack_runs_from_anywhere(tmp_path: Path, fqn: str, status: int) -> None:
    for name, text in LOCAL.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text + "\n")
    facts = tmp_path / "facts.json"
    facts.write_bytes(encode_facts(sample_facts(tensor(fqn))))
    command = [sys.executable, "-m", "shardlint", "lint", str(facts), "--config", str(tmp_path / "shardlint.yaml")]
    command += ["--select", "HOUSE001", "--output-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd="/")
    assert done.returncode == status, done.stdout + done.stderr
    found = [finding["name"] for finding in json.loads(done.stdout)["findings"]]
    assert found == ["no-norm"] * status
