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


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls these layouts and dtypes beta and deprecated
def test_what_cannot_be_looked_at_is_skipped_with_its_reason():
    model = nn.Module()
    model.register_buffer("empty", torch.empty(0, 3))
    model.register_buffer("loose", torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)))
    model.register_buffer("freed", torch.ones(8))
    model.freed.untyped_storage().resize_(0)
    model.register_buffer("wide", torch.ones(1, 4).expand(3, 4))
    model.register_buffer("long", torch.ones(2).to(torch.uint64))
    model.register_buffer("dense", torch.ones(2, 2).to_mkldnn())
    facts = collect(Target(model=model))
    assert not facts.problems
    assert {item.fqn: item.reason for item in facts.values.skipped} == {
        "loose": "it is a sparse tensor that is not coalesced",
        "freed": "its storage was freed",
        "long": "torch.uint64 is not read",
        "dense": "its memory layout torch._mkldnn is not read",
    }
    assert {item.fqn: item.elements for item in facts.values.tensors} == {"wide": 12, "empty": 0}


def test_a_partition_of_zero_3_is_unread_and_not_empty():
    parameter = nn.Parameter(torch.empty(0))
    parameter.ds_id, parameter.ds_shape, parameter.ds_tensor = 0, (4, 4), torch.ones(16)
    model = nn.Module()
    model.weight = parameter
    values = collect(Target(model=model)).values
    assert not values.tensors
    assert [(item.fqn, item.reason) for item in values.skipped] == [
        ("weight", "its values lie in a partition of ZeRO-3, which is not read")
    ]


def test_complex_numbers_are_looked_at_by_their_halves():
    found = seen(torch.tensor([complex(1, -2), complex(3, 4)]))
    assert (found.minimum, found.maximum, found.elements, found.constant) == (-2, 4, 2, False)
    assert seen(torch.full((3,), complex(1, 2))).constant
    assert seen(torch.zeros(3, dtype=torch.complex64)).zero
    assert seen(torch.full((3,), complex(math.nan, math.nan))).nan == 3
    assert seen(torch.tensor([complex(1, math.inf), 0j])).positive_infinite == 1
    assert seen(torch.ones(2, dtype=torch.complex64).conj()).constant


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls these layouts and dtypes beta and deprecated
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_a_sparse_tensor_is_looked_at_by_its_values(layout):
    found = seen(getattr(torch.eye(3) * 2, layout)())
    assert (found.minimum, found.maximum, found.elements, found.constant) == (0, 2, 9, False)
    assert seen(getattr(torch.zeros(3, 3), layout)()).zero
    assert seen(getattr(torch.eye(3) * math.nan, layout)()).nan == 9


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32])
def test_odd_dtypes(dtype):
    found = seen(torch.tensor([1.0, 3.0]).to(dtype))
    assert (found.minimum, found.maximum, found.nan) == (1, 3, 0)
    if dtype.is_floating_point:
        assert seen(torch.tensor([1.0, math.nan]).to(dtype)).nan == 1


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls these layouts and dtypes beta and deprecated
@pytest.mark.parametrize("kind", [torch.quantize_per_tensor, torch.quantize_per_channel])
def test_quantised_dtypes(kind):
    if kind is torch.quantize_per_tensor:
        tensor = kind(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8)
    else:
        tensor = kind(torch.ones(2, 2), torch.tensor([0.5, 0.25]), torch.zeros(2, dtype=torch.long), 0, torch.qint8)
    found = seen(tensor)
    assert (found.elements, found.finite, found.maximum) == (tensor.numel(), True, 0.5)


class Codes(torch.Tensor):
    """Codes and scales, as quantising libraries write them."""

    def __new__(cls, codes, scales):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scales):
        self.codes, self.scales = codes, scales

    def __tensor_flatten__(self):
        return ["codes", "scales"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        if function is torch.ops.aten.detach.default:
            return cls(arguments[0].codes, arguments[0].scales)
        raise NotImplementedError(f"{function}")


class Closed(Codes):
    """The same, which does not say what it is made of."""

    __tensor_flatten__ = None


@pytest.mark.parametrize("nested", [False, True])
def test_a_class_of_tensors_is_looked_at_by_its_parts(nested):
    def made(scale):
        scales = torch.tensor([[0.5], [scale]])
        if nested:
            scales = Codes(torch.ones(2, 1, dtype=torch.int8), scales)
        return seen(Codes(torch.tensor([[1, 2], [3, 4]], dtype=torch.int8), scales), parameter=True)

    good, bad = made(2.0), made(math.nan)
    assert (good.elements, good.minimum, good.maximum, good.finite, good.constant) == (4, 0.5, 2.0, True, False)
    assert bad.nan == 1


def test_a_class_of_tensors_that_does_not_say_what_it_is_made_of_is_unread():
    model = holder(Closed(torch.ones(2, 2, dtype=torch.int8), torch.ones(2)), parameter=True)
    values = collect(Target(model=model)).values
    assert not values.tensors
    assert [item.reason for item in values.skipped] == ["a Closed is not read"]


def test_bitsandbytes_weights_are_looked_at_by_codes_and_scales():
    nf4 = pytest.importorskip("bitsandbytes").nn
    weight = torch.randn(64, 64)
    for twice in (False, True):
        layer = nf4.Linear4bit(64, 64, bias=False, compress_statistics=twice)
        layer.load_state_dict({"weight": weight})
        layer.to("cpu")
        values = collect(Target(model=layer)).values
        assert [tensor.finite for tensor in values.tensors] == [True]
        assert not values.skipped
        state = layer.weight.quant_state
        (state.state2 if twice else state).absmax[0] = math.nan
        assert not collect(Target(model=layer)).values.tensors[0].finite


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
