"""What the collector of the optimizer section reads, and that it changes nothing."""

import pytest
import torch
from torch import nn

from shardlint import Target
from shardlint.collect import collect
from shardlint.facts.codec import decode_facts, encode_facts


def section(model, optimizer):
    facts = collect(Target(model=model, optimizer=optimizer))
    assert not facts.problems
    return decode_facts(encode_facts(facts)).optimizer


class Bag:
    def __init__(self, **items):
        self.__dict__.update(items)


def two():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    return model, torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[1].parameters())


@pytest.mark.parametrize(
    ("wrap", "names"),
    [
        (lambda one, other: [one, other], ["optimizer[0]", "optimizer[1]"]),
        (lambda one, other: {"a": one, "b": other}, ["optimizer[0]", "optimizer[1]"]),
        (
            lambda one, other: Bag(chained_optimizers=[Bag(optimizer=one), other]),
            ["optimizer.chained_optimizers[0].optimizer", "optimizer.chained_optimizers[1]"],
        ),
        (lambda one, other: Bag(optimizers=[one, other]), ["optimizer.optimizers[0]", "optimizer.optimizers[1]"]),
    ],
)
def test_lists_chains_and_wrappers(wrap, names):
    model, one, other = two()
    facts = section(model, wrap(one, other))
    assert [item.name for item in facts.optimizers] == names
    assert [item.qualified_type for item in facts.optimizers] == ["torch.optim.sgd.SGD", "torch.optim.adam.Adam"]
    assert sorted(facts.held_by_parameter()) == [0, 1, 2, 3]
    assert facts.unread == ()


class Prepared(torch.optim.Optimizer):
    """As training libraries wrap one: an optimizer that passes everything on to another."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def state(self):
        return self.optimizer.state


def test_a_wrapper_that_is_an_optimizer_itself():
    model = nn.Linear(2, 2)
    facts = section(model, Prepared(torch.optim.SGD(model.parameters(), lr=0.1)))
    assert [item.name for item in facts.optimizers] == ["optimizer.optimizer"]
    assert [name.rpartition(".")[2] for name in facts.optimizers[0].wrappers] == ["Prepared"]
    assert len(facts.held) == 2


def test_a_chain_that_contains_itself_ends():
    model, one, _ = two()
    chain = Bag(chained_optimizers=[one])
    chain.chained_optimizers.append(chain)
    assert len(section(model, chain).optimizers) == 1


def test_what_cannot_be_read_is_said():
    model, one, _ = two()
    facts = section(model, [one, Bag(step=print)])
    assert len(facts.unread) == 1
    assert facts.unread[0].startswith("optimizer[1] (")


def test_groups_with_names_and_hyperparameters():
    model, _, _ = two()
    groups = [
        {"params": list(model[0].named_parameters("0")), "name": "first", "lr": torch.tensor(0.5)},
        {"params": list(model[1].named_parameters("1")), "weight_decay": 0.25},
    ]
    facts = section(model, torch.optim.AdamW(groups, lr=0.1))
    assert [(group.name, group.size) for group in facts.groups] == [("first", 2), ("group 1", 2)]
    assert facts.groups[0].number("lr") == 0.5
    assert facts.groups[1].number("weight_decay") == 0.25
    assert facts.groups[1].options["betas"] == (0.9, 0.999)
    assert facts.groups[1].number("maximize") is None
    assert [held.name for held in facts.held] == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_state_is_told_by_name_and_spec_and_scalars_are_left_out():
    model = nn.Linear(2, 3).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    before = section(model, optimizer)
    assert {held.has_state for held in before.held} == {False}
    assert dict(optimizer.state) == {}
    model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    facts = section(model, optimizer)
    assert set(facts.held[0].state) == {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    assert {facts.specs[number].text() for number in facts.held[0].state.values()} == {"[3, 2] bfloat16 plain"}


def test_main_groups_of_a_wrapper():
    model = nn.Linear(2, 2).to(torch.bfloat16)
    mains = [nn.Parameter(parameter.detach().float()) for parameter in model.parameters()]
    inner = torch.optim.SGD(mains, lr=0.1)
    wrapper = Bag(optimizer=inner, float16_groups=[list(model.parameters())], fp32_from_float16_groups=[mains])
    facts = section(model, wrapper)
    assert [(held.parameter, held.main) for held in facts.held] == [(0, True), (1, True)]
    assert facts.specs[facts.parameters[0].main].dtype == "float32"


def test_partitioning_optimizers_are_told_by_their_class():
    class DistributedOptimizer:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model = nn.Linear(2, 2)
    flat = torch.optim.SGD([nn.Parameter(torch.zeros(6))], lr=0.1)
    facts = section(model, DistributedOptimizer(flat))
    assert facts.optimizers[0].partitioned


def test_tied_parameters_are_one():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    facts = section(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [item.aliases for item in facts.parameters] == [("0.weight", "1.weight"), ("0.bias",), ("1.bias",)]


def test_without_optimizer_or_model_the_section_says_why():
    model, one, _ = two()
    assert collect(Target(model=model)).absent["optimizer"] == "no optimizer was given"
    assert collect(Target(optimizer=one)).absent["optimizer"] == "no model was given"
