"""What the import contracts of pyproject.toml cover: every module, and nothing that is not there."""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import grimp
import pytest

from support.import_contracts import PublicModulesContract, is_public

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "shardlint"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
MODULES = {
    f"shardlint.{path.stem}"
    for path in PACKAGE.iterdir()
    if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").is_file()
}
# What handles live tensors, or calls what does. Whatever is not named here has to work where no torch is installed.
WITH_TORCH = {
    *("shardlint.api", "shardlint.cli", "shardlint.__main__", "shardlint.collect", "shardlint.integrations"),
    *("shardlint.lint_options", "shardlint.loading", "shardlint.ranks", "shardlint.tracing", "shardlint.weights"),
}


def contract(kind):
    return next(entry for entry in CONTRACTS if entry["type"] == kind)


def test_every_module_has_a_layer():
    layers = [module.strip() for layer in contract("layers")["layers"] for module in re.split("[|:]", layer)]
    assert sorted(layers) == sorted(MODULES)
    assert contract("layers")["ignore_imports"] == []


def test_every_module_without_torch_is_held_to_it():
    entry = contract("forbidden")
    assert entry["forbidden_modules"] == ["torch", "transformers"]
    assert not {"allow_indirect_imports", "ignore_imports"} & set(entry)
    assert set(entry["source_modules"]) == MODULES - WITH_TORCH


@pytest.mark.parametrize(
    ("imported", "kept"),
    [
        ("shardlint", True),
        ("shardlint.facts", True),
        ("shardlint.analysis.keys", True),
        ("shardlint.analysis.anything.new", True),
        ("shardlint.weights.verification", False),
        ("shardlint.brand_new", False),
        ("shardlint.factsheet", False),
        ("math", True),
    ],
)
def test_the_built_in_rules_may_import_what_is_public(imported, kept):
    graph = grimp.ImportGraph()
    graph.add_import(importer="shardlint_rules.d1_declarations.some_rule", imported=imported)
    graph.add_import(importer="shardlint.api", imported="shardlint.engine")
    options = {key: value for key, value in contract("public_modules").items() if key not in ("name", "type")}
    held = PublicModulesContract(name="", session_options={}, contract_options=options)
    check = held.check(graph, verbose=False)
    assert check.kept is kept
    assert [module for _, module in check.metadata["refused"]] == ([] if kept else [imported])
    assert kept is (imported == "math" or is_public(imported))


def test_no_two_public_classes_share_a_name():
    places = defaultdict(list)
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "rules").rglob("*.py")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
    assert "Facts" in places
