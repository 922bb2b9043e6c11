"""What the package asks to be installed is what it imports."""

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def test_every_dependency_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = [path.read_text(encoding="utf-8") for top in ("src", "rules") for path in (ROOT / top).rglob("*.py")]
    imported = {name for text in sources for name in re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)}
    distributions = {item.lower() for name in imported for item in packages_distributions().get(name, [])}
    assert {Requirement(text).name.lower() for text in project["dependencies"]} <= distributions
