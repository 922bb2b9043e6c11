"""Two inventories compared: every kind of difference, and none where there is none."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import shardlint
from shardlint import FrozenDict
from shardlint.analysis.model_diff import KINDS, ModelDifference, diff_models
from shardlint.collect.model import model_facts
from shardlint.facts.codec import decode_facts, encode_facts
from shardlint.introspect.walk import walk


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.config = {"width": 4, "rope": {"theta": 1}, "model_type": "net"}

    def forward(self, x):
        return x


def inventory(change=lambda model: None):
    model = Net()
    changed = change(model)
    return model_facts(walk(changed if isinstance(changed, nn.Sequential) else model))


def untie(model):
    model.head.weight = nn.Parameter(torch.ones(8, 4))


def retype(model):
    model.head = nn.Bilinear(4, 1, 8, bias=False)
    model.head.weight = model.embed.weight


def set_of(module, name, value):
    def change(model):
        setattr(model.get_submodule(module) if module else model, name, value(model) if callable(value) else value)

    return change


def parameter(module, name, build):
    def change(model):
        owner = model.get_submodule(module)
        setattr(owner, name, nn.Parameter(build(getattr(owner, name).detach())))

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (untie, [("aliases", "embed.weight", ("embed.weight", "head.weight"), ("embed.weight",)),
                 ("aliases", "head.weight", ("embed.weight", "head.weight"), ("head.weight",))]),
        (parameter("norm", "weight", lambda t: t.repeat(2)), [("shape", "norm.weight", (4,), (8,))]),
        (parameter("norm", "weight", lambda t: t.half()), [("dtype", "norm.weight", "float32", "float16")]),
        (parameter("norm", "weight", lambda t: t.to("meta")),
         [("device", "norm.weight", "cpu", "meta"), ("meta", "norm.weight", False, True)]),
        (lambda m: m.norm.weight.requires_grad_(False), [("requires-grad", "norm.weight", True, False)]),
        (lambda m: m.norm._non_persistent_buffers_set.add("running_var"),
         [("persistent", "norm.running_var", True, False)]),
        (lambda m: m.norm.eval(), [("training", "norm", True, False)]),
        (lambda m: m.norm.register_parameter("more", nn.Parameter(torch.ones(1))),
         [("tensor-added", "norm.more", None, "parameter float32[1]")]),
        (lambda m: m.norm.register_parameter("bias", None),
         [("tensor-removed", "norm.bias", "parameter float32[4]", None)]),
        (lambda m: m.add_module("more", nn.Identity()),
         [("module-added", "more", None, "torch.nn.modules.linear.Identity")]),
        (lambda m: m.add_module("again", m.norm),
         [("module-added", "again", None, "torch.nn.modules.batchnorm.BatchNorm1d")]),
        (lambda m: m.config.update(width=8), [("config", "width", 4, 8)]),
        (lambda m: m.config["rope"].update(theta=2, kind="yarn"),
         [("config", "rope.kind", "<absent>", "yarn"), ("config", "rope.theta", 1, 2)]),
        (lambda m: setattr(m, "norm", checkpoint_wrapper(m.norm)), [("wrapper", "norm", None, "CheckpointWrapper")]),
        (lambda m: setattr(m.norm, "forward", lambda x, y: x), [("signature", "norm", "(input)", "(x, y)")]),
    ],
)  # fmt: skip
def test_each_kind_of_difference(change, expected):
    before, after = inventory(), inventory(change)
    found = [item for item in diff_models(before, after) if "again." not in item.fqn]
    assert [(item.kind, item.fqn) for item in found] == [(kind, fqn) for kind, fqn, *_ in expected]
    for item, (_, _, was, now) in zip(found, expected, strict=True):
        assert item.before == was
        assert item.after == now or str(item.after).endswith(f".{now}")


def test_module_and_model_types():
    kinds = [item.kind for item in diff_models(inventory(), inventory(retype))]
    assert kinds == ["module-type", "signature"]
    wrapped = inventory(nn.Sequential)
    assert "model-type" in [item.kind for item in diff_models(inventory(), wrapped)]


def test_equal_inventories_do_not_differ():
    assert diff_models(inventory(), inventory()) == ()


def test_reversing_swaps_before_and_after():
    forth = diff_models(inventory(), inventory(untie))
    back = diff_models(inventory(untie), inventory())
    assert back == tuple(
        ModelDifference(kind=item.kind, fqn=item.fqn, before=item.after, after=item.before) for item in forth
    )


@given(st.lists(st.sampled_from(["embed", "norm", "head"]), unique=True))
def test_only_what_was_removed_is_told(names):
    model = Net()
    smaller = copy.deepcopy(model)
    for name in names:
        delattr(smaller, name)
    found = diff_models(model_facts(walk(model)), model_facts(walk(smaller)))
    assert {item.fqn for item in found if item.kind == "module-removed"} == set(names)
    assert all(item.fqn.split(".")[0] in names for item in found if item.kind == "tensor-removed")
    assert [item.kind for item in found] == sorted((item.kind for item in found), key=KINDS.index)


def test_where_a_model_comes_from_stays_with_its_inventory():
    before = shardlint.snapshot(nn.Linear(1, 1), source={"commit": "abc", "recipe": {"name": "base"}}, config=False)
    again = decode_facts(encode_facts(before))
    assert again.model.source == before.model.source == FrozenDict(commit="abc", recipe=FrozenDict(name="base"))
    target = shardlint.Target(model=nn.Linear(1, 1), source={"commit": "abc", "recipe": {"name": "wide"}})
    (difference,) = diff_models(before.model, shardlint.snapshot(target, config=False).model)
    assert difference == ModelDifference(kind="source", fqn="recipe.name", before="base", after="wide")
    with pytest.raises(TypeError, match="source: expected a mapping"):
        shardlint.snapshot(nn.Linear(1, 1), source="abc", config=False)
