"""Encoding, decoding and looking through facts grow linearly with the number of tensors."""

import json
import time
from collections.abc import Callable

import pytest

from shardlint import Facts
from shardlint.facts.codec import decode_facts, encode_facts
from support.packs import sample_facts, tensor

SMALL, LARGE = 12_500, 100_000
REPEATS = 3


def facts_of(count: int) -> Facts:
    return sample_facts(*(tensor(f"model.layers.{number}.mlp.up_proj.weight", (64, 64)) for number in range(count)))


def seconds(call: Callable[[], object]) -> float:
    """The best of several runs: what the work costs, without what the machine does beside it."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


@pytest.mark.benchmark
@pytest.mark.parametrize("what", ["encode", "decode", "look through"])
def test_time_per_tensor_stays_the_same(what: str) -> None:
    per_tensor = []
    for count in (SMALL, LARGE):
        facts = facts_of(count)
        data = encode_facts(facts)
        if what == "look through":
            data = json.dumps(json.loads(data), indent=1).encode()
        call = (lambda facts=facts: encode_facts(facts)) if what == "encode" else (lambda data=data: decode_facts(data))
        per_tensor.append(seconds(call) / count)
    small, large = per_tensor
    assert large < 1.5 * small, f"{small * 1e6:.2f} us a tensor for {SMALL} tensors, {large * 1e6:.2f} for {LARGE}"


@pytest.mark.benchmark
def test_a_file_as_shardlint_wrote_it_is_read_in_half_the_time_of_another() -> None:
    """It is the same when encoded again, so nothing unknown can be in it and nothing is parsed twice."""
    data = encode_facts(facts_of(SMALL))
    indented = json.dumps(json.loads(data), indent=1).encode()
    assert 2 * seconds(lambda: decode_facts(data)) < seconds(lambda: decode_facts(indented))
