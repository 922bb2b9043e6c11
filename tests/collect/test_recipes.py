"""Buffers are compared with the recipes of the contract; a recipe that cannot be used is a problem of the contract."""

import random
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardlint import Target
from shardlint.api import collect_options
from shardlint.collect import collect
from shardlint.config import load_settings
from shardlint.contract import Contract, ContractError, Recipe, contract_from_mapping
from shardlint.testing import assert_findings, assert_rule_clean, run_rule
from shardlint_rules.d1_declarations.contract_invalid import ContractInvalid
from shardlint_rules.d1_declarations.declaration_matches_nothing import DeclarationMatchesNothing
from shardlint_rules.d4_materialization.derived_buffer_wrong import DerivedBufferWrong


class Slopes(nn.Module):
    def __init__(self, persistent=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("slopes", slopes(self, ""), persistent=persistent)


def slopes(model, fqn):
    return 2.0 ** -torch.arange(1.0, 5.0)


def facts_of(model, recipe, buffer="**.*slopes"):
    contract = Contract(recipes=[Recipe(buffer=buffer, recipe=recipe)])
    return collect(Target(model=model, contract=contract))


def problem_of(facts):
    (found,) = run_rule(ContractInvalid, facts).findings
    assert found.subject == "recipes[0].recipe"
    (item,) = facts.values.derived
    assert (item.status, item.declared) == ("unknown", True)
    assert not run_rule(DerivedBufferWrong, facts).findings
    return facts.contract.problems[0].error


@pytest.mark.parametrize("persistent", [False, True])
def test_right_and_wrong(persistent):
    model = nn.Sequential(Slopes(persistent))
    facts = facts_of(model, slopes)
    assert_rule_clean(run_rule(DerivedBufferWrong, facts))
    assert facts.values.derived[0].recipe == "contract recipe slopes"
    model[0].slopes.zero_()
    assert_findings(run_rule(DerivedBufferWrong, facts_of(model, slopes)), "0.slopes")


def test_the_recipe_wins_over_what_the_module_promises():
    model = Slopes()
    model._hp_rebuildable_buffer_specs = {"slopes": SimpleNamespace(source=None, factory=lambda: torch.ones(4))}
    assert_rule_clean(run_rule(DerivedBufferWrong, facts_of(model, slopes)))


def test_the_recipe_gets_the_model_and_the_name_without_gradients():
    seen = []

    def recipe(model, fqn):
        seen.append((model, fqn, torch.is_grad_enabled()))
        return slopes(model, fqn)

    model = nn.Sequential(Slopes())
    facts_of(model, recipe)
    assert seen == [(model, "0.slopes", False)]


def test_from_the_configuration(monkeypatch):
    monkeypatch.setitem(sys.modules, "acme_recipes", SimpleNamespace(slopes=slopes))
    contract = contract_from_mapping({"recipes": [{"buffer": "slopes", "recipe": "acme_recipes:slopes"}]})
    model = Slopes()
    model.slopes[1] *= 2
    found = run_rule(DerivedBufferWrong, collect(Target(model=model, contract=contract)))
    assert_findings(found, "slopes")
    assert found.findings[0].evidence["recipe"] == "contract recipe acme_recipes:slopes"


def test_from_a_settings_file(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "acme_recipes", SimpleNamespace(slopes=slopes))
    text = "contract:\n  recipes:\n    - {buffer: slopes, recipe: 'acme_recipes:slopes'}\n"
    (tmp_path / "shardlint.yaml").write_text(text)
    model = Slopes()
    model.slopes.zero_()
    facts = collect(Target(model=model), collect_options(load_settings(tmp_path)))
    assert_findings(run_rule(DerivedBufferWrong, facts), "slopes")


def test_a_recipe_must_be_callable():
    with pytest.raises(ContractError, match=r"Recipe\.recipe: expected a callable or an import path"):
        Recipe(buffer="*", recipe=3)


def leaves(model, fqn):
    raise SystemExit(3)


def raises(model, fqn):
    raise ValueError("no")


def writes(model, fqn):
    model.slopes.copy_(slopes(model, fqn))
    return slopes(model, fqn)


def replaces(model, fqn):
    model.slopes = slopes(model, fqn)
    return model.slopes


def evaluates(model, fqn):
    model.eval()
    return slopes(model, fqn)


def thaws(model, fqn):
    model.weight.requires_grad_(False)
    return slopes(model, fqn)


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (raises, "for slopes: it raised ValueError: no"),
        (leaves, "it raised SystemExit: 3"),
        (lambda model, fqn: [1.0], "expected a tensor, got list"),
        (lambda model, fqn: torch.ones(3), "expected the shape [4], got [3]"),
        (lambda model, fqn: torch.ones(4, device="meta"), "expected a plain real tensor with values"),
        (lambda model, fqn: torch.ones(4).to_sparse(), "expected a plain real tensor with values"),
        (lambda model, fqn: torch.full((4,), float("nan")), "none of them NaN"),
        (lambda model, fqn: model.slopes, "got the memory of the buffer itself"),
        (lambda model, fqn: model.slopes[:], "got the memory of the buffer itself"),
        (lambda: torch.ones(4), "it raised TypeError"),
        (writes, "it must not change the model, but changed slopes"),
        (replaces, "it must not change the model, but changed <root>"),
        (evaluates, "it must not change the model, but changed <root>"),
        (thaws, "it must not change the model, but changed weight"),
        ("no_such_module_at_all:x", "no_such_module_at_all"),
    ],
)
def test_a_recipe_that_cannot_be_used(recipe, text):
    model = Slopes()
    model.slopes.mul_(3)
    assert text in problem_of(facts_of(model, recipe))


def test_integers_are_not_compared_with_fractions():
    model = nn.Module()
    model.register_buffer("slopes", torch.arange(4))
    assert "expected integers" in problem_of(facts_of(model, lambda model, fqn: torch.arange(4) + 0.5))
    assert_rule_clean(run_rule(DerivedBufferWrong, facts_of(model, lambda model, fqn: torch.arange(4))))


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (torch.ones(4, device="meta"), "it is on the meta device"),
        (torch.ones(4).to_sparse(), "it is not a plain real tensor"),
    ],
)
def test_a_buffer_that_cannot_be_compared_is_not_evaluated(buffer, reason):
    model = nn.Sequential(Slopes())
    model.register_buffer("strange_slopes", buffer)
    facts = facts_of(model, slopes, "strange_slopes")
    assert not facts.problems
    assert not facts.contract.problems
    found = run_rule(DerivedBufferWrong, facts)
    assert not found.findings
    assert f"strange_slopes: {reason}" in found.reason


def test_real_numbers_are_not_compared_with_complex_ones():
    model = nn.Module()
    model.register_buffer("slopes", torch.ones(4, dtype=torch.complex64))
    assert "expected the kind of numbers of the buffer" in problem_of(facts_of(model, lambda model, fqn: torch.ones(4)))
    same = facts_of(model, lambda model, fqn: torch.ones(4, dtype=torch.complex64))
    assert_rule_clean(run_rule(DerivedBufferWrong, same))


def test_one_problem_for_many_buffers():
    facts = facts_of(nn.Sequential(Slopes(), Slopes(), Slopes()), raises)
    assert [item.error for item in facts.contract.problems] == ["for 0.slopes and 2 more: it raised ValueError: no"]


def test_random_states_are_put_back():
    def recipe(model, fqn):
        random.random()
        return torch.rand(4)

    states = random.getstate(), torch.get_rng_state()
    facts_of(Slopes(), recipe)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


def test_a_glob_without_a_buffer_is_told():
    model = nn.Sequential(Slopes())
    assert_findings(run_rule(DeclarationMatchesNothing, facts_of(model, slopes, "*.slope")), "*.slope")
    assert_findings(run_rule(DeclarationMatchesNothing, facts_of(model, slopes, "*.weight")), "*.weight")


@pytest.fixture
def second_of_two():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("placements", "here"),
    [([Replicate()], [0, 1, 2, 3]), ([Shard(0)], [2, 3]), ([_StridedShard(0, split_factor=2)], [1, 3])],
)
def test_of_a_distributed_buffer_the_part_here_is_compared(second_of_two, placements, here):
    model = Slopes()
    local = slopes(model, "")[here].clone()
    model.slopes = DTensor.from_local(
        local, second_of_two, placements, run_check=False, shape=torch.Size([4]), stride=(1,)
    )
    facts = facts_of(model, slopes)
    assert [item.status for item in facts.values.derived] == ["equal"]
    local[-1] += 1.0
    assert_findings(run_rule(DerivedBufferWrong, facts_of(model, slopes)), "slopes")


def test_a_partial_buffer_is_not_compared(second_of_two):
    model = Slopes()
    model.slopes = DTensor.from_local(slopes(model, ""), second_of_two, [Partial()], run_check=False)
    (item,) = facts_of(model, slopes).values.derived
    assert (item.status, item.declared) == ("unknown", True)
