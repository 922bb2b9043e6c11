"""The look at values costs little more than one pass over them."""

import time

import pytest
import torch
from torch import nn

from shardlint.collect.sharding import collect_ownership
from shardlint.collect.values import values_facts
from shardlint.facts import Facts
from shardlint.introspect.walk import walk

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def processor_time(function):
    started = time.thread_time()
    function()
    return time.thread_time() - started


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_and_a_half_passes_of_aminmax(dtype, one_thread):
    model = nn.ModuleList(nn.Linear(2048, 2048, dtype=dtype) for _ in range(32))  # 0.5 GB in float32
    tables = collect_ownership(walk(model))
    tensors = [parameter.detach() for parameter in model.parameters()]
    rounds = [
        (
            processor_time(lambda: [torch.aminmax(tensor) for tensor in tensors]),
            processor_time(lambda: values_facts(tables, Facts())),
        )
        for _ in range(7)
    ]
    bare, looked = (min(times) for times in zip(*rounds, strict=True))
    assert looked <= 1.5 * bare, f"{looked:.3f} s against {bare:.3f} s"
