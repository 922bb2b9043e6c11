"""Everything public says what it is, and a type checker sees its types."""

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import shardlint

ROOT = Path(__file__).parents[2]


def expanded():
    """The names of the public modules, each module of a public package by itself."""
    for name in shardlint.PUBLIC_MODULES:
        if not name.endswith(".*"):
            yield name
            continue
        package = import_module(name.removesuffix(".*"))
        yield from (module.name for module in walk_packages(package.__path__, package.__name__ + "."))


PUBLIC = tuple(expanded())
LISTED = "\n".join(f"- `{name}`" for name in shardlint.PUBLIC_MODULES)


def test_the_package_and_the_page_for_packs_list_the_public_modules():
    assert f"\n\n{LISTED}\n\n" in shardlint.__doc__
    assert f"<!-- public modules -->\n{LISTED}\n<!-- end -->" in (ROOT / "docs" / "packs.md").read_text()


def ours(module):
    """The public classes and functions of a module that are shardlint's, by their dotted names."""
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    for name in names:
        value = getattr(module, name)
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("shardlint"):
            yield f"{module.__name__}.{name}", value


def members(name, value):
    """The methods and properties that a class defines itself."""
    for inner, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not inner.startswith("_") and inspect.isfunction(function):
            yield f"{name}.{inner}", function


@pytest.mark.parametrize("module", PUBLIC)
def test_everything_public_has_a_docstring(module):
    found = dict(ours(import_module(module)))
    assert found
    for name, value in list(found.items()):
        if inspect.isclass(value):
            found.update(members(name, value))
    assert [name for name, value in found.items() if not (value.__doc__ or "").strip()] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_function_is_annotated_in_full(module):
    found = {name: value for name, value in ours(import_module(module)) if inspect.isfunction(value)}
    for name, value in ours(import_module(module)):
        if inspect.isclass(value):
            found.update(members(name, value))
    for name, function in found.items():
        if function.__code__.co_filename.startswith("<"):
            continue  # written by attrs
        signature = inspect.signature(function)
        bare = [item for item in signature.parameters.values() if item.annotation is item.empty]
        assert [item.name for item in bare if item.name not in ("self", "cls")] == [], name
        assert signature.return_annotation is not signature.empty, name


def test_the_package_says_that_it_is_typed():
    assert (Path(shardlint.__file__).parent / "py.typed").is_file()
