"""What a version of torch lacks becomes an unknown fact: never an exception, never a guess."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardlint.boxes import OTHER, PARTIAL, REPLICATE, SHARD, STRIDED
from shardlint.collect.sharding import sharding_facts
from shardlint.collect.sharding.dtensor import mesh_facts
from shardlint.collect.sharding.fsdp2 import groups_of
from shardlint.collect.sharding.placements import placement
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.facts import Facts
from shardlint.introspect.versioned import UNKNOWN, Missing, first, ints, listed
from shardlint.introspect.walk import walk
from shardlint_rules.pack import shardlint_rules


@pytest.fixture(scope="module", autouse=True)
def fake_job():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model():
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
    built = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(built[0], mesh=mesh)
    return fully_shard(built, mesh=mesh)


class Hiding:
    """An object of another version: some attributes are missing, some raise."""

    def __init__(self, wrapped, *hidden, **instead):
        self.__dict__["_parts"] = (wrapped, hidden, instead)

    def __getattr__(self, name):
        wrapped, hidden, instead = self.__dict__["_parts"]
        if name in hidden:
            raise AttributeError(name)
        if name in instead:
            if isinstance(instead[name], Exception):
                raise instead[name]
            return instead[name]
        return getattr(wrapped, name)


def read(model, monkeypatch, *, group=(), state=(), param=(), **instead):
    """The facts as a version would give them whose groups, states and parameters lack some attributes."""
    from shardlint.collect.sharding import fsdp2

    def groups(real_state):
        found = []
        for real in fsdp2.__dict__["listed"](first(real_state, "_fsdp_param_groups")):
            params = [Hiding(item, *param) for item in real.fsdp_params]
            found.append(Hiding(real, *group, fsdp_params=params, **instead))
        return found

    real_state_of = fsdp2.state_of
    hidden = {}

    def state_of(module):
        real = real_state_of(module)
        return None if real is None else hidden.setdefault(id(real), Hiding(real, *state))

    monkeypatch.setattr(fsdp2, "groups_of", groups)
    monkeypatch.setattr(fsdp2, "state_of", state_of)
    return sharding_facts(walk(model))


def test_a_whole_version_has_nothing_unknown(model, monkeypatch):
    facts = read(model, monkeypatch)
    assert [unit.unknown for unit in facts.units] == [(), ()]
    assert facts.reductions[0].divisor == 4.0


@pytest.mark.parametrize(
    ("lacking", "fact", "field"),
    [
        ({"group": ["post_forward_mesh_info"]}, "reshard_after_forward", "reshard_after_forward"),
        ({"group": ["_all_gather_result"]}, "pending_all_gather", "pending_all_gather"),
        ({"group": ["is_unsharded"]}, "unsharded", "unsharded"),
        ({"group": ["mesh_info"]}, "mesh", "mesh"),
        ({"state": ["_is_root"]}, "is_root", "is_root"),
    ],
)
def test_a_missing_attribute_is_an_unknown_fact(model, monkeypatch, lacking, fact, field):
    for unit in read(model, monkeypatch, **lacking).units:
        assert fact in unit.unknown
        assert getattr(unit, field) is None


def test_a_factor_inside_a_reduce_operation_is_unknown(model, monkeypatch):
    """Torch 2.6 and 2.7 keep it in `reduce_scatter_reduce_op`, which does not tell it."""
    facts = read(model, monkeypatch, group=["gradient_divide_factor"], reduce_scatter_reduce_op=object())
    assert "divisor" in facts.units[0].unknown
    assert facts.reductions[0].divisor is None
    facts = read(model, monkeypatch, group=["gradient_divide_factor"], reduce_scatter_reduce_op=None)
    assert facts.reductions[0].divisor == 4.0


def test_no_rule_crashes_whatever_is_missing(model, monkeypatch):
    lacking = {
        "group": ["mesh_info", "mp_policy", "gradient_divide_factor", "post_forward_mesh_info", "is_unsharded"],
        "state": ["_is_root", "_modules", "_states_to_forward_prefetch", "_pre_forward_hook_handle"],
        "param": ["_orig_param_uid", "mesh_info", "fsdp_placement", "_unsharded_dtensor_spec"],
    }
    facts = Facts(sharding=read(model, monkeypatch, **lacking))
    rules = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code.startswith("D3")]
    evaluation = evaluate(facts, rules)
    assert evaluation.findings == ()
    assert all(outcome.status is not Status.CRASHED for outcome in evaluation.outcomes)


def test_the_plural_of_groups_is_asked_first():
    """From torch 2.12 the singular is a property that raises AssertionError."""
    several = Hiding(None, _fsdp_param_groups=[1, 2], _fsdp_param_group=AssertionError("two groups"))
    assert groups_of(several) == [1, 2]
    assert groups_of(Hiding(SimpleNamespace(), _fsdp_param_group=7)) == [7]
    assert groups_of(Hiding(SimpleNamespace(), _fsdp_param_group=None)) == []
    assert groups_of(SimpleNamespace()) == []


def named(name, **fields):
    return type(name, (), {"__repr__": lambda self: f"{name}()", **fields})()


def test_placements_are_told_by_their_names():
    strided = type("_StridedShard", (type("Shard", (), {}),), {"dim": 1, "split_factor": 2})()
    assert (placement(strided).kind, placement(strided).split_factor) == (STRIDED, 2)
    assert placement(named("Shard", dim=0)).kind == SHARD
    assert placement(named("Replicate")).kind == REPLICATE
    assert placement(named("_NormPartial")).kind == PARTIAL
    assert placement(named("RaggedShard")).kind == OTHER
    assert placement(named("Split", dim=2, is_shard=lambda self: True)).dim == 2


def test_an_unknown_placement_leaves_the_boxes_unknown(model):
    facts = mesh_facts(SimpleNamespace(mesh_dim_names=("ep",)))
    assert (facts.axes, facts.shape, facts.ranks, facts.coordinate) == (("ep",), (), (), None)
    facts = mesh_facts(SimpleNamespace(mesh_dim_names=None, mesh=[[0, 1], [2, 3]], shape=(2, 2)))
    assert (facts.axes, facts.shape, facts.ranks) == ((), (2, 2), (0, 1, 2, 3))


def test_reading_never_raises():
    class Hostile:
        @property
        def value(self):
            raise AssertionError

        def __iter__(self):
            raise TypeError

    assert first(Hostile(), "value", "other") is UNKNOWN
    assert first(None, "value") is UNKNOWN
    assert not UNKNOWN
    assert listed(UNKNOWN) == listed(None) == listed(Hostile()) == []
    assert ints(["a"]) is None
    missing = Missing()
    assert missing("a", UNKNOWN) is None
    assert missing("b", 3) == 3
    assert missing.names == ["a"]


def test_facts_do_not_touch_the_model(model):
    before = {name: (id(item), item._version, item.requires_grad) for name, item in model.named_parameters()}
    state = torch.random.get_rng_state()
    sharding_facts(walk(model))
    assert {n: (id(item), item._version, item.requires_grad) for n, item in model.named_parameters()} == before
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(item._is_root is None for item in (module._get_fsdp_state() for module in (model, model[0])))
