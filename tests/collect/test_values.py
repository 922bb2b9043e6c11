"""What is kept of values: statistics, never the values; and that looking changes nothing."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlint import Target
from shardlint.collect import CollectOptions, collect
from shardlint.facts.codec import decode_facts, encode_facts


def holder(tensor, parameter=False):
    module = nn.Module()
    if parameter:
        module.weight = nn.Parameter(tensor)
    else:
        module.register_buffer("weight", tensor)
    return module


def seen(tensor, **kind):
    facts = collect(Target(model=holder(tensor, **kind)))
    assert not facts.problems
    (found,) = decode_facts(encode_facts(facts)).values.tensors
    return found


@given(arrays.arrays("float32", st.integers(1, 12), elements=st.floats(width=32)))
@settings(max_examples=150, deadline=None)
def test_statistics_are_those_of_the_elements(array):
    tensor = torch.from_numpy(array)
    found, numbers = seen(tensor), [float(item) for item in array]
    finite = [item for item in numbers if math.isfinite(item)]
    assert found.elements == len(numbers)
    assert found.nan == sum(map(math.isnan, numbers))
    assert found.positive_infinite == numbers.count(math.inf)
    assert found.negative_infinite == numbers.count(-math.inf)
    assert (found.minimum, found.maximum) == ((min(finite), max(finite)) if finite else (None, None))
    assert found.constant == (len(set(numbers)) == 1 and not found.nan)
    assert found.zero == all(item == 0 for item in numbers)
    assert found.finite == (len(finite) == len(numbers))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool])
def test_every_ordinary_dtype(dtype):
    found = seen(torch.tensor([[0, 1], [1, 1]]).to(dtype))
    assert (found.minimum, found.maximum, found.elements, found.constant) == (0, 1, 4, False)


def test_narrow_floats_tell_their_magnitude():
    assert seen(torch.tensor([0.25, -0.5, 4.0], dtype=torch.bfloat16)).magnitude == 0.5
    assert seen(torch.ones(3)).magnitude is None


def test_no_value_of_a_weight_is_kept():
    tensor = torch.arange(1000, dtype=torch.float32) + 0.12345
    text = encode_facts(collect(Target(model=holder(tensor, parameter=True)))).decode()
    assert not [item for item in tensor[1:-1].tolist() if f"{item}" in text]


def test_meta_models_have_no_values():
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    assert collect(Target(model=model)).absent["values"] == "every tensor is on the meta device"
    model.bias = nn.Parameter(torch.zeros(2))
    assert [item.fqn for item in collect(Target(model=model)).values.tensors] == ["bias"]


def test_they_can_be_left_out():
    facts = collect(Target(model=nn.Linear(2, 2)), CollectOptions(values=False))
    assert facts.absent["values"] == "values were not asked for"


def test_what_is_no_plain_tensor_is_skipped_with_its_reason():
    model = nn.Module()
    model.register_buffer("empty", torch.empty(0, 3))
    model.register_buffer("complex", torch.ones(2, dtype=torch.complex64))
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    model.register_buffer("freed", torch.ones(8))
    model.freed.untyped_storage().resize_(0)
    model.register_buffer("wide", torch.ones(1, 4).expand(3, 4))
    facts = collect(Target(model=model))
    assert not facts.problems
    assert {item.fqn: item.reason for item in facts.values.skipped} == {
        "complex": "it is complex",
        "sparse": "its memory layout is torch.sparse_coo",
        "freed": "its storage was freed",
    }
    assert {item.fqn: item.elements for item in facts.values.tensors} == {"wide": 12, "empty": 0}


def test_of_a_sharded_parameter_the_local_part_is_looked_at_also_within_a_step(one_rank):
    model = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    before = collect(Target(model=model)).values
    model(torch.ones(1, 4))
    assert collect(Target(model=model)).values == before
    assert {item.fqn for item in before.tensors} == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_tied_tensors_are_looked_at_once():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    assert [item.fqn for item in collect(Target(model=model)).values.tensors] == ["0.weight"]


def test_looking_changes_nothing():
    model = nn.Linear(3, 3)
    model.weight.grad = torch.ones(3, 3)
    before = (model.weight._version, model.weight.detach().clone(), torch.get_rng_state())
    collect(Target(model=model))
    assert model.weight._version == before[0]
    assert torch.equal(model.weight, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
