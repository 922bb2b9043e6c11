"""TARGET in all its forms, and one clear error for everything a user can get wrong."""

import io
import sys
import textwrap

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from shardlint import Target
from shardlint.collect import CollectOptions, TargetError, collect, collect_resolved, resolve
from shardlint.collect.targets import parse_arguments
from shardlint.facts.codec import encode_facts

BUILDERS = """
    import torch
    from torch import nn
    import shardlint

    def build(width=2, *, bias=True, name="x"):
        model = nn.Linear(width, width, bias=bias)
        model.label = name
        return model

    class Models:
        class Inner:
            @staticmethod
            def make():
                return nn.Linear(1, 1)

    def target():
        return shardlint.Target(model=nn.Linear(1, 1), name="mine")

    def broken():
        return helper(3)

    def helper(number):
        raise RuntimeError(f"cannot {number}")

    def deep():
        return torch.ones(2) @ torch.ones(3)

    def leaving():
        raise SystemExit(4)

    def nothing():
        pass

    def pair():
        return nn.Linear(1, 1), None

    def empty():
        return shardlint.Target()

    def a_class():
        return nn.Linear

    number = 3
    built = nn.Linear(2, 2)
"""


@pytest.fixture
def builders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "builders.py").write_text(textwrap.dedent(BUILDERS))
    (tmp_path / "pack_of").mkdir()
    (tmp_path / "pack_of" / "__init__.py").write_text("")
    (tmp_path / "pack_of" / "models.py").write_text(textwrap.dedent(BUILDERS))
    yield tmp_path
    for name in ("builders", "pack_of", "pack_of.models"):
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


@pytest.mark.parametrize("text", ["builders:build", "builders.py:build", "./builders.py:build", "pack_of.models:build"])
def test_a_callable_of_a_module_or_file(builders, text):
    found = resolve(text, ["width=3", "bias=false", "name=3x"])
    assert found.kind == "live"
    assert found.target.model.in_features == 3
    assert found.target.model.bias is None
    assert found.target.model.label == "3x"
    assert (found.target.name, found.build.builder, found.build.failed) == (text, text, False)


def test_dotted_names_targets_modules_and_classes(builders):
    assert resolve("builders.py:Models.Inner.make").target.model.in_features == 1
    assert resolve("builders.py:target").target.name == "mine"
    assert resolve("builders.py:built").target.model.in_features == 2


def test_a_file_has_a_private_name_and_finds_its_neighbours(builders):
    (builders / "sub").mkdir()
    (builders / "sub" / "neighbour.py").write_text("from torch import nn\nmodel = nn.Linear(1, 1)\n")
    (builders / "sub" / "torch_like.py").write_text("def build():\n    import neighbour\n    return neighbour.model\n")
    found = resolve("sub/torch_like.py:build")
    assert found.kind == "live"
    assert "torch_like" not in sys.modules
    sys.modules.pop("neighbour")


def test_arguments_are_yaml_scalars():
    pairs = [
        "a=3",
        "b=0.5",
        "c=true",
        "d=null",
        "e=text",
        "f=",
        "g=2020-01-01",
        "h=a: b: c",
        "i=none",
        "j='3'",
        "k=a=b",
    ]
    values = parse_arguments(pairs)
    assert values == {
        "a": 3, "b": 0.5, "c": True, "d": None, "e": "text", "f": "", "g": "2020-01-01", "h": "a: b: c", "i": None,
        "j": "3", "k": "a=b",
    }  # fmt: skip
    assert parse_arguments({"a": "3", "b": 4.0}) == {"a": 3, "b": 4.0}


@pytest.mark.parametrize("pair", ["a", "=3", "a b=3", "3=a", "a=[1]", "a={b: 1}"])
def test_arguments_that_are_none(pair):
    with pytest.raises(TargetError, match="--arg"):
        parse_arguments([pair])


def test_arguments_given_twice_or_to_what_is_not_called(tmp_path):
    with pytest.raises(TargetError, match="given before"):
        parse_arguments(["a=1", "a=2"])
    with pytest.raises(TargetError, match="--arg is for targets that are called"):
        resolve(str(tmp_path), ["a=1"])


@pytest.mark.parametrize(
    ("name", "kind", "text", "function"),
    [
        ("broken", "RuntimeError", "cannot 3", "helper"),
        ("deep", "RuntimeError", "inconsistent tensor size", "deep"),
        ("leaving", "SystemExit", "4", "leaving"),
    ],
)
def test_a_builder_that_raises_is_a_fact(builders, name, kind, text, function):
    for target in (f"builders.py:{name}", f"builders:{name}"):
        found = resolve(target)
        assert found.kind == "build-failed"
        assert (found.build.failed, found.build.error_type) == (True, kind)
        assert text in found.build.error
        assert found.build.frame.startswith(str(builders / "builders.py:"))
        assert found.build.frame.endswith(f" in {function}")
        facts = collect_resolved(found)
        assert facts.build == found.build
        assert facts.model is None
        assert facts.absent["model"] == "building the model failed"


@pytest.mark.parametrize("body", ["raise ValueError('at import')", "def f(:\n", "import not_there_at_all"])
def test_a_file_that_cannot_be_imported_is_a_failed_build(builders, body):
    (builders / "bad.py").write_text(f"\n{body}\n")
    for target in ("bad.py:f", "bad:f"):
        found = resolve(target)
        assert found.kind == "build-failed"
        assert found.build.frame.startswith(f"{builders / 'bad.py'}:2")
        assert found.build.error_type in ("ValueError", "SyntaxError", "ModuleNotFoundError")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("builders.py:biuld", ["has no 'biuld'", "did you mean 'build'"]),
        ("builders.py:Models.Iner", ["has no 'Iner'", "did you mean 'Inner'"]),
        ("builders.py:zzz", ["has no 'zzz'", "it has "]),
        ("bilders:build", ["no module named 'bilders'", "did you mean 'builders'", "current folder"]),
        ("pack_of.nodels:build", ["no module named 'pack_of.nodels'"]),
        ("gone.py:build", ["no such file"]),
        ("builders.py", ["name the callable as well"]),
        ("gone.py", ["no such file", "path/file.py:callable"]),
        ("builders.py:number", ["expected a callable", "got int"]),
        ("builders.py:nothing", ["got None", "does the builder return"]),
        ("builders.py:pair", ["got tuple", "instead of a tuple"]),
        ("builders.py:empty", ["neither a model nor a checkpoint"]),
        ("builders.py:a_class", ["got type", "return an instance"]),
        ("no/such/folder", ["no such file or folder"]),
        ("package.module", ["no such file or folder", "package.module:callable"]),
        ("builders.py:a b", ["expected package.module:name"]),
        ("", ["an empty target", "facts file"]),
    ],
)
def test_one_clear_error(builders, text, parts):
    with pytest.raises(TargetError) as caught:
        resolve(text)
    message = str(caught.value)
    assert "Traceback" not in message
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_arguments_that_the_builder_does_not_take(builders):
    with pytest.raises(TargetError, match=r"cannot be called with these arguments: .*widht"):
        resolve("builders.py:build", ["widht=3"])


def test_a_type_error_inside_the_builder_is_the_builders(builders):
    (builders / "inner.py").write_text("def build():\n    return len(3)\n")
    assert resolve("inner.py:build").build.error_type == "TypeError"


def test_a_checkpoint_folder_or_file(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        found = resolve(str(path))
        assert (found.kind, found.target.checkpoint) == ("checkpoint", path)
        facts = collect_resolved(found)
        assert [entry.key for entry in facts.checkpoint.entries] == ["weight"]
        assert facts.absent["model"] == "no model was given"


def test_a_callable_whose_name_is_also_a_path(builders):
    (builders / "builders.py:build").mkdir()
    save_file({"weight": torch.ones(2)}, builders / "builders.py:build" / "model.safetensors")
    assert resolve("builders.py:build").kind == "checkpoint"


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("model.safetensors.index.json", "{}", "point at its folder"),
        ("config.json", "{}", "point at its folder"),
        ("facts.json", "", "is empty"),
        ("facts.json", "{", "holds no facts"),
        ("facts.json", '{"version": 99}', "99"),
        ("facts.json", "[1, 2]", "holds no facts"),
        ("readme.md", "text", "not a checkpoint file"),
        ("pytorch_model.bin", "x", "not a checkpoint file"),
    ],
)
def test_files_that_are_no_target(tmp_path, name, content, part):
    (tmp_path / name).write_text(content)
    with pytest.raises(TargetError, match=part):
        resolve(str(tmp_path / name))


def test_folders_without_weights(tmp_path):
    with pytest.raises(TargetError, match="it is empty"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TargetError, match=r"found none; it holds config\.json"):
        resolve(str(tmp_path))


def test_facts_from_a_file_and_from_standard_input(tmp_path):
    facts = collect(Target(model=nn.Linear(2, 2), name="mine"))
    (tmp_path / "facts.json").write_bytes(encode_facts(facts))
    assert collect_resolved(resolve(str(tmp_path / "facts.json"))) == facts
    found = resolve("-", stdin=io.BytesIO(encode_facts(facts)))
    assert (found.kind, collect_resolved(found)) == ("facts", facts)
    with pytest.raises(TargetError, match="standard input holds no facts"):
        resolve("-", stdin=io.BytesIO(encode_facts(facts)[:-9]))


def test_nothing_is_added_to_facts_that_were_collected_before(tmp_path):
    (tmp_path / "facts.json").write_bytes(encode_facts(collect(Target(model=nn.Linear(1, 1)))))
    found = resolve(str(tmp_path / "facts.json"))
    with pytest.raises(TargetError, match="--checkpoint and --contract cannot be added"):
        collect_resolved(found, CollectOptions(contract="a:b"), checkpoint="x")


def test_resolving_a_facts_file_needs_no_torch(tmp_path):
    import subprocess

    (tmp_path / "facts.json").write_bytes(encode_facts(collect(Target(model=nn.Linear(1, 1)))))
    code = (
        "import sys; from shardlint.collect import resolve, collect_resolved;"
        "collect_resolved(resolve(sys.argv[1])); sys.exit('torch' in sys.modules)"
    )
    path = str(tmp_path / "facts.json")
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 0
