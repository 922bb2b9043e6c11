"""Collecting the facts of a large model costs a small multiple of listing its parameters."""

import gc
import time

import pytest
import torch
from torch import nn

from shardlint.collect.model import model_facts
from shardlint.introspect.attributes import gc_paused
from shardlint.introspect.walk import walk

PARAMETERS = 50_000
BLOCK = 100


def cost_of(function, rounds=5):
    """Seconds of this process, the least of several rounds, the result held until the clock has stopped."""
    costs = []
    for _ in range(rounds):
        gc.collect()
        started = time.process_time()
        result = function()
        costs.append(time.process_time() - started)
        del result
    return min(costs)


def facts_of(model):
    with gc_paused():
        return model_facts(walk(model))


@pytest.mark.benchmark
def test_facts_cost_at_most_fifteen_times_the_list_of_parameters():
    with torch.device("meta"):
        model = nn.ModuleList(
            nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(BLOCK)) for _ in range(PARAMETERS // BLOCK)
        )
    assert len(facts_of(model).parameters) == PARAMETERS
    listing = cost_of(lambda: list(model.named_parameters(remove_duplicate=False)))
    collecting = cost_of(lambda: facts_of(model))
    assert collecting <= 15 * listing, f"{collecting:.3f} s against {listing:.3f} s"
