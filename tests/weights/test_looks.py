"""A comparison says what a difference looks like, relates names by values, and tells its own crash as one."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from shardlint import Facts, LiveTarget
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.target import Fusion
from shardlint.weights import RowStatus, WeightsVerdict, compare_checkpoints, faults, verify
from shardlint_rules.v0_validation.weights_differ import WeightsDiffer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(3))

    def __len__(self) -> int:
        return 0  # a container that is empty: its truth value is false


def saved(path, values):
    path.mkdir(exist_ok=True)
    save_file({name: value.clone().contiguous() for name, value in values.items()}, path / "model.safetensors")
    return path / "model.safetensors"


def message(model, file):
    (fault,) = faults(verify(model, file))
    return fault.message


def test_a_live_tensor_that_is_another_layer_or_transposed(tmp_path):
    model = Net()
    file = saved(tmp_path / "net", model.state_dict())
    assert verify(model, file).verdict is WeightsVerdict.PASS
    kept = model.layers[1].weight.detach().clone()
    model.layers[1].weight.data = kept.t().contiguous()
    assert message(model, file).endswith(". It equals the stored tensor transposed.")
    model.layers[1].weight.data = model.layers[2].weight.detach().clone()
    assert message(model, file).endswith(". It equals layers.2.weight of the checkpoint.")


def test_the_same_between_two_folders(tmp_path):
    values = Net().state_dict()
    reference = saved(tmp_path / "one", values)
    halved = values | {"layers.0.weight": values["layers.0.weight"] / 2}
    (fault,) = faults(compare_checkpoints(saved(tmp_path / "two", halved), reference))
    assert fault.message.endswith(". It is the stored tensor times 0.5.")
    assert fault.evidence["looks"] == ("layers.0.weight is the stored tensor times 0.5",)
    assert fault.evidence["largest_difference"] >= fault.evidence["median_difference"] > 0


def test_equal_values_under_other_names_are_one_information(tmp_path):
    values = Net().state_dict()
    other = {name.replace("layers", "h"): value for name, value in values.items()}
    result = compare_checkpoints(saved(tmp_path / "one", values), saved(tmp_path / "two", other))
    assert result.verdict is WeightsVerdict.PASS
    assert result.count(RowStatus.EXACT) == 3
    (fault,) = faults(result)
    assert (fault.what, fault.evidence["names"][0]) == ("renamed", "layers.0.weight is h.0.weight")


def test_different_values_under_other_names_are_not_related(tmp_path):
    values = Net().state_dict()
    other = {name.replace("layers", "h"): value + 1 for name, value in values.items()}
    result = compare_checkpoints(saved(tmp_path / "one", values), saved(tmp_path / "two", other))
    assert result.verdict is WeightsVerdict.INCOMPLETE
    assert "different names" in result.incomplete


def test_tensors_that_the_other_side_stores_as_one(tmp_path):
    parts = {f"h.{layer}.{part}.weight": torch.randn(4, 8) for layer in range(2) for part in "qkv"}
    whole = {
        f"h.{layer}.qkv.weight": torch.cat([parts[f"h.{layer}.{part}.weight"] for part in "qkv"]) for layer in range(2)
    }
    fusion = Fusion(sources=("h.*.q.weight", "h.*.k.weight", "h.*.v.weight"), target="h.*.qkv.weight")
    one, two = saved(tmp_path / "apart", parts), saved(tmp_path / "whole", whole)
    assert compare_checkpoints(one, two).verdict is not WeightsVerdict.PASS
    for pair in ((one, two), (two, one)):
        result = compare_checkpoints(*pair, fusions=(fusion,))
        assert (result.verdict, result.count(RowStatus.EXACT)) == (WeightsVerdict.PASS, 2)
    whole["h.1.qkv.weight"] = whole["h.1.qkv.weight"].roll(4, 0)
    (fault,) = faults(compare_checkpoints(saved(tmp_path / "moved", whole), one, fusions=(fusion,)))
    assert "blocks are exchanged" in fault.message
    misspelt = compare_checkpoints(one, two, fusions=(Fusion(sources=("q.*", "k.*"), target="qk.*"),))
    assert "checkpoint.fuse" in misspelt.incomplete


def test_a_crash_of_the_comparison_is_no_finding_about_weights(tmp_path, monkeypatch):
    model = Net()
    file = saved(tmp_path / "net", model.state_dict())

    def broken(*_, **__):
        raise KeyError("a fault of the comparison")

    monkeypatch.setattr("shardlint.weights.verification.shards_of", broken)
    result = verify(model, file)
    assert (result.crashed, faults(result)) == ((0,), ())
    rule = SelectedRule(rule=WeightsDiffer(), explicit=True)
    found = evaluate(Facts(), [rule], heavy=True, live=LiveTarget(model=model, checkpoint=file))
    assert found.outcomes[0].status is Status.CRASHED
    assert [item.code for item in found.findings] == ["SL001"]


@pytest.mark.parametrize("wrap", [lambda model: model, torch.compile])
def test_a_model_whose_truth_value_is_false_or_raises_is_compared(tmp_path, wrap):
    model = Net()
    file = saved(tmp_path / "net", model.state_dict())
    result = verify(wrap(model), file)
    assert (result.verdict, result.count(RowStatus.EXACT)) == (WeightsVerdict.PASS, 3)
