"""Rules on models that are really sharded, over a fake process group: no second process is needed for these."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardlint.collect import collect
from shardlint.contract import Contract, TopologyConstraint
from shardlint.facts import ROOT
from shardlint.target import Target
from shardlint.testing import run_rule
from shardlint_rules.pack import shardlint_rules

RULES = {rule.code: rule for rule in shardlint_rules()}


@pytest.fixture(scope="module", autouse=True)
def fake_job():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.fixture
def mesh():
    return init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))


class Block(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.up = nn.Linear(size, 2 * size, bias=False)
        self.down = nn.Linear(2 * size, size, bias=False)


class Decoder(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Block() for _ in range(layers))


def sharded(mesh, model=None):
    model = model or Decoder()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def subjects(code, model, optimizer=None, **options):
    return run_rule(RULES[code], collect(Target(model=model, optimizer=optimizer)), **options).subjects


@pytest.mark.parametrize("code", ["D206", "D209", "D211", *(f"D3{number:02}" for number in range(1, 18))])
def test_a_sound_model_is_clean(mesh, code):
    model = sharded(mesh)
    assert subjects(code, model, torch.optim.SGD(model.parameters(), lr=0.1)) == ()


@pytest.mark.live("D206")
def test_a_module_shared_by_two_units(mesh):
    model = sharded(mesh)
    model.layers[1].up = model.layers[0].up  # before wrapping, torch itself refuses it
    assert subjects("D206", model) == ("layers.0.up",)


def test_a_shared_module_that_is_a_unit(mesh):
    model = Decoder()
    model.layers[1].up = model.layers[0].up
    fully_shard(model.layers[0].up, mesh=mesh)
    assert subjects("D206", sharded(mesh, model)) == ()


@pytest.mark.live("D209")
def test_checkpoint_wrappers_below_the_blocks(mesh):
    model = Decoder()
    for layer in model.layers:
        layer.up = checkpoint_wrapper(layer.up)
    assert subjects("D209", sharded(mesh, model)) == ("layers.{0..2}.up",)
    whole = Decoder()
    whole.layers = nn.ModuleList(checkpoint_wrapper(layer) for layer in whole.layers)
    assert subjects("D209", sharded(mesh, whole)) == ()


def adapted(mesh, rows):
    model = Decoder(1)
    weight = distribute_tensor(model.layers[0].up.weight.data, mesh, [Shard(0)])
    model.layers[0].up.weight = nn.Parameter(weight)
    model.layers[0].up.lora_A = nn.Linear(8, 2, bias=False)
    model.layers[0].up.lora_B = nn.Linear(2, rows(model.layers[0].up.weight), bias=False)
    return model


@pytest.mark.live("D211")
def test_an_adapter_of_the_local_size(mesh):
    assert subjects("D211", adapted(mesh, lambda weight: weight.to_local().shape[0])) == ("layers.0.up.lora_B.weight",)
    assert subjects("D211", adapted(mesh, lambda weight: weight.shape[0])) == ()


@pytest.mark.live("D309")
def test_flags_against_the_layout(mesh):
    model = Decoder(1)
    up, down = model.layers[0].up, model.layers[0].down
    up.weight = nn.Parameter(distribute_tensor(up.weight.data, mesh, [Shard(0)]))
    down.weight = nn.Parameter(distribute_tensor(down.weight.data, mesh, [Replicate()]))
    up.weight.tensor_model_parallel = down.weight.tensor_model_parallel = True
    assert subjects("D309", model) == ("layers.0.down.weight",)
    up.weight.tensor_model_parallel = down.weight.tensor_model_parallel = False
    assert subjects("D309", model) == ("layers.0.up.weight",)


def test_nothing_but_the_root_wrapped(mesh):
    model = fully_shard(Decoder(), mesh=mesh)
    assert subjects("D314", model, min_elements=100) == (ROOT,)
    assert subjects("D314", model) == ()  # a small model
    assert subjects("D314", sharded(mesh), min_elements=100) == ()


@pytest.mark.live("D315")
def test_prefetch_of_itself_and_of_a_module_that_was_replaced(mesh):
    model = sharded(mesh)
    first, second, _ = model.layers
    first.set_modules_to_forward_prefetch([first])
    stranger = fully_shard(Block(), mesh=mesh)
    second.set_modules_to_backward_prefetch([stranger])
    facts = collect(Target(model=model))
    found = run_rule(RULES["D315"], facts).findings
    assert [(item.subject, "itself" in item.message, "<untracked:" in item.message) for item in found] == [
        ("layers.0", True, False),
        ("layers.1", False, True),
    ]


@pytest.mark.live("D312")
def test_a_tied_parameter_cut_unevenly(mesh):
    model = Decoder(1)
    model.embed = nn.Embedding(18, 8)
    model.head = nn.Linear(8, 18, bias=False)
    model.head.weight = model.embed.weight
    found = run_rule(RULES["D312"], collect(Target(model=fully_shard(model, mesh=mesh)))).findings
    assert [(item.subject, item.severity.value) for item in found] == [("embed.weight", "warning")]


@pytest.mark.live("D316")
def test_a_local_tensor_of_another_shape(mesh):
    model = Decoder(1)
    wrong = DTensor.from_local(torch.zeros(3, 8), mesh, [Shard(0)], run_check=False, shape=(16, 8), stride=(8, 1))
    model.layers[0].up.weight = nn.Parameter(wrong)
    assert subjects("D316", model) == ("layers.0.up.weight",)


@pytest.mark.live("D317")
def test_one_of_the_layers_was_not_wrapped(mesh):
    model = Decoder()
    for layer in model.layers[:2]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert subjects("D317", model) == ("layers.2",)
    assert subjects("D317", model, left=("layers.2",)) == ()


def test_a_layer_of_another_kind_may_fall_into_the_root(mesh):
    model = Decoder()
    model.layers.append(Block(4))
    for layer in model.layers[:3]:
        fully_shard(layer, mesh=mesh)
    assert subjects("D317", fully_shard(model, mesh=mesh)) == ()


@pytest.mark.live("D304")
def test_a_root_that_was_never_wrapped(mesh):
    model = Decoder()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    assert subjects("D304", model) == ("embed.weight",)


@pytest.mark.live("D301")
def test_a_tie_made_after_wrapping(mesh):
    model = Decoder(1)
    model.head = nn.Linear(8, 16, bias=False)
    fully_shard(model.head, mesh=mesh)
    sharded(mesh, model)
    model.head.weight = model.embed.weight
    assert subjects("D301", model) == ("embed.weight",)


def test_one_sharded_tensor_in_two_units_costs_a_second_gather_only(mesh):
    model = Decoder(1)
    model.head = nn.Linear(8, 16, bias=False)
    fully_shard(model.embed, mesh=mesh)
    fully_shard(model.head, mesh=mesh)
    model.head.weight = model.embed.weight
    params = [module._get_fsdp_state()._fsdp_param_group.fsdp_params[0] for module in (model.embed, model.head)]
    params[1].sharded_param = model.embed.weight
    fully_shard(model, mesh=mesh)
    found = run_rule(RULES["D301"], collect(Target(model=model))).findings
    assert [(item.subject, item.severity.value) for item in found] == [("embed.weight", "warning")]


def test_one_mesh_for_everything_is_clean():
    """`dp_mesh_dims` (torch 2.12 and later): the layout before sharding is on the whole mesh already."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "DataParallelMeshDims"):
        pytest.skip("this torch has no dp_mesh_dims")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    for dim, layer in enumerate(model):
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.data, mesh, [Replicate(), Shard(dim)]))
    fully_shard(model, mesh=mesh, dp_mesh_dims=fsdp.DataParallelMeshDims(shard="dp_shard"))
    facts = collect(Target(model=model))
    assert facts.sharding.reductions[0].ranks == (0, 2)
    assert [facts.sharding.layout_of(item).local_shape for item in facts.sharding.parameters] == [(2, 8), (4, 4)]
    assert [run_rule(RULES[code], facts).subjects for code in ("D304", "D306", "D312", "D316")] == [(), (), (), ()]


@pytest.mark.live("D318")
def test_a_mesh_axis_beyond_the_bounds_of_the_contract(mesh):
    bounds = {"axis": "fsdp", "maximum": 2}
    declared = Contract(topology=(TopologyConstraint(name="small", fields=bounds),))
    facts = collect(Target(model=sharded(mesh), contract=declared))
    assert run_rule(RULES["D318"], facts).subjects == ("small",)
    wide = Contract(topology=(TopologyConstraint(name="wide", fields={"axis": "fsdp", "minimum": 2, "divides": 8}),))
    run = run_rule(RULES["D318"], collect(Target(model=sharded(mesh), contract=wide)))
    assert (run.subjects, run.reason) == ((), "")
