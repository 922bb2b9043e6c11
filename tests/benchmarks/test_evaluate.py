"""Evaluating the rules, and writing the outcome, takes time in proportion to the number of tensors."""

import functools
import gc
import json
import time

import pytest
from attrs import evolve

from shardlint import Severity
from shardlint.engine.runner import SelectedRule, evaluate
from shardlint.facts import Facts, FrozenDict, LoadFacts, thaw
from shardlint.facts.codec import decode_facts, encode_facts
from shardlint.testing import checkpoint_for, declaration, index_for, model, tensor
from shardlint_rules.pack import shardlint_rules

SIZES = (12_000, 50_000, 100_000)
PER_LAYER = 10
ALLOWED = 1.5
ROUNDS = 5


@functools.cache
def snapshot(size, broken=0):
    """A decoder of `size` tensors, of which `broken` keys are spelled differently in the checkpoint."""
    layers = size // PER_LAYER
    names = [f"model.layers.{layer}.mlp.experts.{number}.up.weight" for layer in range(layers) for number in range(10)]
    live = model(
        "acme.Decoder",
        [tensor(names[0], (8, 4), "lm_head.weight"), *(tensor(name, (8, 4)) for name in names[1:])],
        declarations=(
            declaration("", "acme.Decoder", tied_weights={"lm_head.weight": names[0]}, base_model_prefix="model"),
        ),
        config=FrozenDict(num_hidden_layers=layers, tie_word_embeddings=True),
        key_mapping="identity",
    )
    stored = checkpoint_for(live, files=8)
    step = size // broken if broken else size + 1
    entries = tuple(
        evolve(entry, key=entry.key.replace(".up.", ".upp.")) if broken and number % step == 1 else entry
        for number, entry in enumerate(stored.entries)
    )
    return Facts(model=live, checkpoint=evolve(stored, entries=entries, index=index_for(entries)))


def selected():
    return [SelectedRule(rule=rule()) for rule in shardlint_rules()]


def check_linear(work, arguments):
    """
    Assert that the CPU time per tensor stays within `ALLOWED` over all sizes.

    Other processes only ever add time, so the best of several rounds counts, and rounds end when the best ones fit.
    The garbage collector is off, as timeit has it.
    """
    best = dict.fromkeys(arguments, float("inf"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for size, argument in arguments.items():
                best[size] = min(best[size], _timed(work, argument) / size)
            if max(best.values()) <= ALLOWED * min(best.values()):
                return
    finally:
        gc.enable()
    raise AssertionError(f"seconds per tensor: {best}")


def _timed(work, argument):
    started = time.process_time()
    work(argument)
    return time.process_time() - started


def as_json(facts):
    evaluation = evaluate(facts, selected())
    findings = [[item.code, item.subject, item.message, thaw(item.evidence)] for item in evaluation.findings]
    return json.dumps(findings), encode_facts(facts)


@pytest.mark.benchmark
@pytest.mark.parametrize("share", [0, 20], ids=["clean", "broken"])
def test_evaluation_and_json_grow_linearly(share):
    arguments = {size: snapshot(size, size // share if share else 0) for size in SIZES}
    small = evaluate(arguments[SIZES[0]], selected()).findings
    errors = [item for item in small if item.severity is Severity.ERROR]
    assert len(errors) == (2 * SIZES[0] // share if share else 0)
    check_linear(as_json, arguments)


@pytest.mark.benchmark
def test_load_reports_grow_linearly():
    check_linear(lambda facts: evaluate(facts, selected()), {size: reported(size) for size in SIZES})


@pytest.mark.benchmark
def test_decoding_grows_linearly():
    check_linear(decode_facts, {size: encode_facts(snapshot(size)) for size in SIZES})


def reported(size):
    facts = snapshot(size)
    missing = tuple(item.fqn for item in facts.model.tensors[::20])
    report = LoadFacts(loader="acme", missing=missing, unexpected=tuple(f"x.{name}" for name in missing))
    return evolve(facts, load=report)
