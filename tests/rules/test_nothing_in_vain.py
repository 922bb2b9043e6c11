"""Every fact that is collected is read by a rule or a report, and every setting by the engine or a rule."""

import ast
import inspect
import sys
from pathlib import Path

import attrs
import pytest

import shardlint.facts
from shardlint.config.schema import all_keys
from shardlint.testing import load_folder, run_case
from shardlint_rules.pack import shardlint_rules

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCE = ROOT / "src" / "shardlint"
RULES = ROOT / "rules"
# Who reads facts to judge them, and which of their modules only copy what is there.
READERS = tuple(str(folder) for folder in (RULES, SOURCE / "analysis", SOURCE / "facts"))
COPYING = tuple(str(SOURCE / "facts" / name) for name in ("codec.py", "strict.py", "schema.py", "frozen.py"))
COMMANDS = ("api.py", "cli", "diagnostics.py", "engine", "loading", "ranks", "report", "tracing", "weights")
CLASSES = {
    value.__name__: value
    for value in vars(shardlint.facts).values()
    if inspect.isclass(value) and attrs.has(value) and value.__module__.startswith("shardlint.facts.")
}
FIELDS = {(name, field.name) for name, kind in CLASSES.items() for field in attrs.fields(kind)}
# What packs may want to know and no rule of ours does. A field that comes to be read has to leave the list.
FOR_PACKS = {
    "AdapterFacts.base_type",
    "ContractFacts.placeholders",
    "FileFacts.header_bytes",
    "MeshFacts.device_type",
    "ModelFacts.aliases_cut",
    "ModelFacts.cycles",
    "ModuleFacts.forward_signature",
    "ModuleFacts.training",
    "OptimizerInstance.wrappers",
    "UnitEvent.within",
    "UnitFacts.classes",
    "UnitFacts.hooks_alive",
    "UnitFacts.is_root",
    "WrapperFacts.wrapped_type",
}
CONTRACT_FACTS = {
    "contract": "ContractFacts",
    "contract.probes[]": "ProbeFacts",
    "contract.data": "DataSemanticsFacts",
    "contract.shared-state[]": "SharedStateFacts",
}

# D109 says of the whole table that it has no effect.
WITHOUT_EFFECT = ("contract.parity-cases[]",)


@pytest.fixture(scope="module")
def read_by_rules():
    """The fields of facts that rules, and what rules call, read while all their cases are run."""
    reads = set()
    for kind in CLASSES.values():
        kind.__getattribute__ = recording(kind, reads)
    try:
        for case in load_folder(HERE):
            run_case(case, shardlint_rules())
    finally:
        for kind in CLASSES.values():
            del kind.__getattribute__
    return reads


def recording(kind, reads):
    names = {field.name for field in attrs.fields(kind)}

    def read(self, name):
        if name in names:
            file = sys._getframe(1).f_code.co_filename
            if file.startswith(READERS) and not file.startswith(COPYING):
                reads.add((kind.__name__, name))
        return object.__getattribute__(self, name)

    return read


def words_in(*places):
    """The attributes and the strings that stand in the code of some files and folders."""
    words = set()
    for place in places:
        for path in place.rglob("*.py") if place.is_dir() else (place,):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute):
                    words.add(node.attr)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words.add(node.value)
    return words


def test_every_fact_is_read(read_by_rules):
    commands = words_in(*(SOURCE / name for name in COMMANDS))
    unread = {f"{kind}.{name}" for kind, name in FIELDS - read_by_rules if name not in commands}
    assert unread == FOR_PACKS


def test_what_nobody_reads_would_be_noticed(read_by_rules):
    assert ("ProbeFacts", "stages") in read_by_rules
    assert ("OptimizerInstance", "wrappers") not in read_by_rules


@pytest.fixture(scope="module")
def words_of_the_engine():
    """What the code says that is neither the definition of a setting nor a mere copy of it into facts."""
    defining = {
        "contract.py",
        "contract_values.py",
        "contract_mapping.py",
        "facts",
        "testing",
        "config",
        "__pycache__",
        "py.typed",
    }
    places = [place for place in SOURCE.iterdir() if place.name not in {*defining, "collect"}]
    places += [path for path in (SOURCE / "collect").iterdir() if path.name not in ("contracts.py", "__pycache__")]
    return words_in(*places, RULES, SOURCE / "config" / "settings.py")


@pytest.mark.parametrize("path", [path for path, _ in all_keys() if not path.startswith(WITHOUT_EFFECT)])
def test_every_setting_is_read(path, read_by_rules, words_of_the_engine):
    table, _, name = path.rpartition(".")
    field = (CONTRACT_FACTS.get(table), name.replace("-", "_"))
    last = {name, name.replace("-", "_"), path}
    assert field in read_by_rules or last & words_of_the_engine, f"nothing reads {path}: give it a rule, or drop it"
