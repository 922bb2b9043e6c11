"""
Measure the layout of the code: `python tests/house.py [ROOT] [--names]`.

ROOT is a checkout of shardlint (default: this one), so that two commits can be compared. The measurements read the
source text and import nothing of ROOT. `--names` also lists what was counted.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
VAGUE_NAMES = ("found", "item", "held")
LONG_FUNCTION, LONG_FILE = 40, 400

# The way of the data: a module of one stage may import from the same stage or an earlier one. `facts`, `names`, `boxes`
# and `contract` are the vocabulary of all stages, `analysis` and `diagnostics` work on that vocabulary alone (the layer
# contract puts them below the collectors), and `config` and `plugins` are set up before the data flows.
STAGES = (
    ("introspect", "checkpoint", "target", "live", "loading"),
    ("collect", "tracing"),
    ("rule", "keys", "ties", "coverage", "provenance", "inventory"),
    ("engine", "runner", "selection", "suppress", "rule_options"),
    ("report", "assembly", "joint"),
    ("weights", "ranks", "jobs"),
    ("api",),
    ("cli", "integrations", "testing", "demo"),
)
STAGE_OF = {room: number for number, rooms in enumerate(STAGES) for room in rooms}
# Where settings are declared, validated, converted and stored. Being copied there does not count as being read.
CARRIERS = ("src/shardlint/config/", "src/shardlint/testing/", "src/shardlint/facts/", "src/shardlint/contract.py")
CARRIERS += ("src/shardlint/contract_mapping.py", "src/shardlint/collect/contracts.py")

READ_BY_CONFIG = ("version", "extends")


class House:
    """The source files of a checkout, parsed once."""

    def __init__(self, root):
        self.root = root
        paths = sorted([*(root / "src").rglob("*.py"), *(root / "rules").rglob("*.py")])
        self.texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        self.trees = {path: ast.parse(text) for path, text in self.texts.items()}
        self.pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))

    def top_level_modules(self):
        """Modules that stand next to the folders, without `__init__` and the like."""
        return sorted(
            path.stem for path in (self.root / "src/shardlint").glob("*.py") if not path.stem.startswith("__")
        )

    def outside_the_layers(self):
        """Modules and folders at the top level that the layer contract of import-linter does not name."""
        contracts = self.pyproject["tool"]["importlinter"]["contracts"]
        layers = [layer for contract in contracts if contract["type"] == "layers" for layer in contract["layers"]]
        named = {name.strip(" ()").split(".")[1] for layer in layers for name in re.split("[|:]", layer) if "." in name}
        folders = {path.parent.name for path in (self.root / "src/shardlint").glob("*/__init__.py")}
        private = {name for name in self.top_level_modules() if name == "_version"}
        return sorted(({*self.top_level_modules(), *folders} - named) - private)

    def ambiguous_classes(self):
        """Class names that are defined in more than one module."""
        modules = defaultdict(set)
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    modules[node.name].add(path)
        return [f"{name} ({len(paths)})" for name, paths in sorted(modules.items()) if len(paths) > 1]

    def unread_settings(self):
        """
        Keys of the schema that no module reads besides those that declare, validate and copy them.

        A key counts as read where a module takes an attribute of its name, or names its whole dotted path other than in
        a `related_config`, and also mentions the table that the key belongs to.
        """
        readers = [_Reads(tree, self.texts[path]) for path, tree in self.trees.items() if not path.startswith(CARRIERS)]
        return [key for key in self._setting_keys() if not any(_reads(reader, key) for reader in readers)]

    def _setting_keys(self):
        """The dotted keys of the contract and those at the top level that `config` itself does not use."""
        tree = self.trees["src/shardlint/config/schema.py"]
        tables = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        keys = list(_keys(tables["SETTINGS"], tables, ""))
        return [key for key in keys if key.startswith("contract.") or ("." not in key and key not in READ_BY_CONFIG)]

    def climbs(self):
        """Imports of a module of a later stage by a module of an earlier one."""
        climbs = set()
        for path, tree in self.trees.items():
            if not path.startswith("src/shardlint/"):
                continue
            room = path.split("/")[2].removesuffix(".py")
            for target in _imported_rooms(path, tree):
                if STAGE_OF.get(room, 99) < STAGE_OF.get(target, -1):
                    climbs.add(f"{path.removeprefix('src/shardlint/')} -> {target}")
        return sorted(climbs)

    def long_functions(self):
        """Functions of more than 40 lines, decorators and docstring included."""
        functions = []
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    if node.end_lineno - first + 1 > LONG_FUNCTION:
                        functions.append(f"{path}:{node.lineno} {node.name} ({node.end_lineno - first + 1})")
        return functions

    def long_files(self):
        """Files of more than 400 lines."""
        counts = {path: text.count("\n") for path, text in self.texts.items()}
        return [f"{path} ({count})" for path, count in counts.items() if count > LONG_FILE]

    def vague_names(self):
        """How often each vague name stands for a local value, by name (f-strings included, attributes not)."""
        counts = Counter()
        for tree in self.trees.values():
            counts.update(_local_names(tree))
        return {name: counts[name] for name in VAGUE_NAMES}


class _Reads:
    """The attributes and strings of a module, and its text."""

    def __init__(self, tree, text):
        related = {
            id(constant)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "related_config"
            for constant in ast.walk(node.value)
        }
        self.text = text
        self.attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        self.strings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in related
        }


def _reads(reader, key):
    *parents, name = key.replace("[]", "").split(".")
    attribute = name.replace("-", "_")
    table = parents[-1].replace("-", "_") if parents else attribute
    if key in reader.strings or (not parents and attribute in reader.strings):
        return True
    return attribute in reader.attributes and bool(re.search(rf"\b{table}\b|\b{_class_of(table)}", reader.text))


def _class_of(table):
    """The beginning of the name of the facts class of a table: `shared_state` -> `SharedState`, `probes` -> `Probe`."""
    return "".join(word.capitalize() for word in table.rstrip("s").split("_"))


def _keys(table, tables, path):
    """The dotted keys of a `Table(...)` expression and of the tables inside it."""
    for call in ast.walk(table):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Key":
            key = f"{path}.{call.args[0].value}" if path else call.args[0].value
            inner, is_list = _inner_table(call.args[1], tables)
            yield key
            if inner is not None:
                yield from _keys(inner, tables, f"{key}[]" if is_list else key)


def _inner_table(kind, tables):
    if isinstance(kind, ast.Name):
        value = tables.get(kind.id)
        return (value, False) if _is_call(value, "Table") else (None, False)
    if _is_call(kind, "ListOf"):
        inner = next((keyword.value for keyword in kind.keywords if keyword.arg == "item"), None)
        return (_inner_table(inner, tables)[0], True) if isinstance(inner, ast.Name) else (None, True)
    return None, False


def _is_call(node, name):
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == name


def _imported_rooms(path, tree):
    """The top-level rooms that a module imports when it runs; imports for type checkers are left out."""
    package = path.removeprefix("src/").removesuffix(".py").split("/")[:-1]
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in skipped:
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        parts = [*base, *(node.module.split(".") if node.module else [])]
        if parts[:1] == ["shardlint"]:
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]


def _local_names(tree):
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
        if name in VAGUE_NAMES:
            yield name


def figures(house):
    """What is measured: title to number, or to the things that are counted."""
    return {
        "modules at the top level": house.top_level_modules(),
        "modules and folders in no layer": house.outside_the_layers(),
        "class names with two meanings": house.ambiguous_classes(),
        "settings read by nobody": house.unread_settings(),
        "climbs on the way of the data": house.climbs(),
        f"functions over {LONG_FUNCTION} lines": house.long_functions(),
        f"files over {LONG_FILE} lines": house.long_files(),
        **{f"uses of `{name}` as a local name": count for name, count in house.vague_names().items()},
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Measure the layout of the code.")
    parser.add_argument("root", nargs="?", type=Path, default=HERE, help="a checkout of shardlint")
    parser.add_argument("--names", action="store_true", help="also list what was counted")
    chosen = parser.parse_args(arguments)
    for title, measured in figures(House(chosen.root.resolve())).items():
        number = measured if isinstance(measured, int) else len(measured)
        print(f"{number:5}  {title}")
        if chosen.names and not isinstance(measured, int):
            print("".join(f"         {name}\n" for name in measured), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
