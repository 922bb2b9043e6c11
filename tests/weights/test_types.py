"""
Every Transformers model type with structural conversions, and a sample of those with renamings: saved, loaded, PASS.

Then one bit is flipped at a seeded place, and must be found at exactly that live element and that stored element.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from shardlint.weights import Difference, RowKind, WeightsVerdict, check_export, faults, verify
from shardlint.weights.compare.bits import bits_of
from shardlint.weights.compare.diagnose import pattern, unravel
from support.shrink import quiet
from weights.types import candidates

SEED = 5
HERE = Path(__file__).parent
STRUCTURAL = (HERE / "structural_types.txt").read_text().split()
RENAMED = (HERE / "renamed_types.txt").read_text().split()
SAMPLE = 60
CHOSEN = {*STRUCTURAL, *random.Random(SEED).sample(RENAMED, min(SAMPLE, len(RENAMED)))}

# Types whose own code changes weights after loading them: the difference that is found is real.
CHANGED_AFTER_LOADING = {
    "chinese_clip": "text_model.embeddings.word_embeddings.weight",  # the row of the padding token is zeroed
    "zaya": "balancing_biases",  # the last bias is set to -1
}


def parameters() -> list[Any]:
    names = sorted({*STRUCTURAL, *RENAMED, *CHANGED_AFTER_LOADING})
    return [
        pytest.param(name, marks=() if name in {*CHOSEN, *CHANGED_AFTER_LOADING} else pytest.mark.exhaustive)
        for name in names
    ]


def saved_and_loaded(name: str, folder: Path) -> Any:
    """A model of the type that was saved and loaded again, from the first small configuration that allows it."""
    problems = []
    for config, kind in candidates(name):
        try:
            with quiet():
                return round_trip(config, kind, folder)
        except Exception as error:  # the configuration is at fault: sizes that do not fit each other
            problems.append(f"{type(error).__name__}: {error}")
    pytest.fail(f"no small configuration of {name} can be saved and loaded: {problems}")


def round_trip(config: Any, kind: Any, folder: Path) -> Any:
    torch.manual_seed(SEED)
    model = kind(config)
    with torch.no_grad():
        for tensor in {id(p): p for p in [*model.parameters(), *model.buffers()]}.values():
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape) * 0.02 + 0.01)
    model.tie_weights()
    model.save_pretrained(folder)
    return kind.from_pretrained(folder)


def stored_bits(folder: Path, difference: Difference) -> str:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            if difference.checkpoint_key in file.keys():  # noqa: SIM118 - the handle is no mapping
                value = file.get_tensor(difference.checkpoint_key)
                return pattern(value[difference.checkpoint_index].reshape(1))
    raise AssertionError(f"{difference.checkpoint_key} is not stored")


@pytest.mark.slow
@pytest.mark.parametrize("name", parameters())
def test_type(name, tmp_path):
    model = saved_and_loaded(name, tmp_path)
    result = verify(model, tmp_path, threads=1)
    changed = CHANGED_AFTER_LOADING.get(name)
    if changed is not None:
        assert [fault.what for fault in faults(result)] == ["mismatch"]
        assert changed in faults(result)[0].subject
        return
    assert result.verdict is WeightsVerdict.PASS, [fault.message for fault in faults(result)]
    assert [group.first.message for group in check_export(model, tmp_path)] == []
    live = result.of_kind(RowKind.LIVE)
    assert all(row.checked == row.expected for row in live)
    converted = [row for row in live if row.operations]
    assert bool(converted) == (name in STRUCTURAL)
    chosen = random.Random(f"{SEED} {name}")
    tensors = {key: value for key, value in model.state_dict().items() if value.numel()}
    target = chosen.choice([row.name for row in converted or live if row.name in tensors])
    bits = bits_of(tensors[target])
    index = unravel(chosen.randrange(bits.size), bits.shape)
    bits[index] ^= 1
    found = [row for row in verify(model, tmp_path, threads=1).of_kind(RowKind.LIVE) if row.load_mismatches]
    assert [(row.name, row.load_mismatches) for row in found] == [(target, 1)]
    first = found[0].first
    assert first is not None
    assert first.live_index == index
    assert stored_bits(tmp_path, first) == first.reference_bits
