"""Run the command line in this process, and facts to run it on."""

from pathlib import Path

import pytest
from attrs import frozen

from shardlint.cli.main import main
from shardlint.facts import CheckpointFacts, EntryFacts, Facts, FileFacts, ModelCounts, ModelFacts, TensorFacts
from shardlint.facts.codec import encode_facts


@frozen
class Result:
    status: int
    out: str
    err: str


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Call the command line in an empty folder, in 100 columns, without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "SHARDLINT_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return call


def tensor(fqn, **more):
    values = {
        "aliases": (fqn,),
        "kind": "parameter",
        "shape": (2, 2),
        "dtype": "float32",
        "device": "cpu",
        "requires_grad": True,
        "is_meta": False,
        "storage": None if more.get("is_meta") else len(fqn),
    }
    return TensorFacts(fqn=fqn, **(values | more))


def facts(*tensors, stored=None):
    tensors = tensors or tuple(tensor(f"layers.{i}.weight") for i in range(4))
    counts = ModelCounts(modules=1, parameters=len(tensors), buffers=0, parameter_elements=4 * len(tensors))
    model = ModelFacts(qualified_type="pkg.Model", model_type="tiny", tensors=tensors, counts=counts)
    checkpoint = None
    if stored is not None:
        entries = tuple(
            EntryFacts(key=key, dtype="F32", shape=(2, 2), file="model.safetensors", begin=16 * i, end=16 * i + 16)
            for i, key in enumerate(stored)
        )
        file = FileFacts(name="model.safetensors", size=1000, kind="safetensors", opened=True, tensors=len(entries))
        checkpoint = CheckpointFacts(path="ckpt", format="safetensors", files=(file,), entries=entries)
    return Facts(target="tiny", model=model, checkpoint=checkpoint)


@pytest.fixture
def clean(tmp_path):
    """A facts file with nothing wrong."""
    return written(tmp_path / "clean.json", facts())


@pytest.fixture
def faulty(tmp_path):
    """A facts file with two parameters left on meta (D401)."""
    tensors = [tensor("layers.0.weight"), *(tensor(f"layers.{i}.weight", is_meta=True) for i in (1, 2))]
    return written(tmp_path / "faulty.json", facts(*tensors))


def written(path: Path, value: Facts) -> Path:
    path.write_bytes(encode_facts(value))
    return path
