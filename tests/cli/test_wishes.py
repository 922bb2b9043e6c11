"""What is asked for on the command line and cannot be done is exit 2 with a line that says so."""

import pytest
import torch
from safetensors.torch import save_file

BUILD = "import torch\ndef build():\n    return torch.nn.Linear(2, 2)\n"


@pytest.fixture
def places(tmp_path):
    (tmp_path / "m.py").write_text(BUILD)
    for name in ("pickle", "gguf"):
        (tmp_path / name).mkdir()
    torch.save({"weight": torch.ones(2, 2)}, tmp_path / "pickle" / "pytorch_model.bin")
    (tmp_path / "gguf" / "m.gguf").write_bytes(b"GGUF" + bytes(64))
    return tmp_path


@pytest.mark.parametrize("checkpoint", ["pickle", "pickle/pytorch_model.bin", "gguf", "gguf/m.gguf"])
def test_a_named_checkpoint_that_nobody_reads(run, places, checkpoint):
    result = run("lint", "m.py:build", "--checkpoint", checkpoint, "--isolated")
    assert result.status == 2
    said = " ".join(result.out.split())
    assert f"the checkpoint '{checkpoint}' was named, and none of its tensors was read" in said
    assert f"its format is {checkpoint.partition('/')[0]}" in said


def test_heavy_rules_that_can_read_no_weight(run, places):
    result = run("lint", "pickle", "--heavy", "--isolated")
    assert result.status == 2
    assert "heavy rules were asked for, and none could read any weight" in " ".join(result.out.split())


def test_external_state_beside_a_builder(run, places):
    (places / "host_state.py").write_text(
        "import torch\n"
        "from shardlint.weights import ExternalShard\n"
        "class Host:\n"
        "    def __init__(self, model):\n"
        "        self.model = model\n"
        "    def parameter_names(self):\n"
        "        return ['table']\n"
        "    def shards(self):\n"
        "        yield ExternalShard(name='table', local=torch.ones(3, 2), global_shape=(3, 2), offsets=(0, 0))\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Linear(2, 2)\n"
    )
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 2)
    named = ("lint", "host_state.py:build", "--checkpoint", "ck", "--external", "host_state:Host", "--isolated")
    for value, status in ((1.0, 0), (2.0, 1)):
        (places / "ck").mkdir(exist_ok=True)
        save_file({**layer.state_dict(), "table": torch.full((3, 2), value)}, places / "ck" / "model.safetensors")
        assert run(*named, "--select", "V002").status == status
    (places / "broken_state.py").write_text("def host():\n    return None\n")
    broken = run("lint", "host_state.py:build", "--external", "broken_state:host", "--isolated")
    assert broken.status == 2
    assert "--external broken_state:host: calling it with the model raised TypeError" in " ".join(broken.err.split())
