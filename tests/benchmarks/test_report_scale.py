"""Evaluation and reports grow linearly with the number of tensors: processor time per tensor, in one run."""

import gc
import io
import time

import pytest

from shardlint.api import lint_facts
from shardlint.facts import Facts, ModelCounts, ModelFacts, TensorFacts
from shardlint.report import ReportOptions, write_json, write_text

pytestmark = pytest.mark.benchmark

SIZES = (12_000, 50_000, 100_000)
# Collapsing looks up sort keys that are cached up to a number of names, so that small reports gain by a second run.
MOST = {"evaluation": 1.5, "json": 1.5, "text": 2.0}


def facts(count):
    """A mixture of experts of which every parameter was left on meta: one finding for each."""
    tensors = []
    for number in range(count):
        fqn = f"model.layers.{number // 100}.experts.{number % 100}.weight"
        tensors.append(
            TensorFacts(
                fqn=fqn,
                aliases=(fqn,),
                kind="parameter",
                shape=(2, 2),
                dtype="float32",
                device="meta",
                requires_grad=True,
                is_meta=True,
            )
        )
    counts = ModelCounts(modules=1, parameters=count, buffers=0, parameter_elements=4 * count)
    return Facts(target="scale", model=ModelFacts(qualified_type="pkg.Model", tensors=tuple(tensors), counts=counts))


def measured(function):
    gc.collect()
    gc.disable()
    try:
        started = time.process_time()
        value = function()
        return value, time.process_time() - started
    finally:
        gc.enable()


def seconds(given, count):
    """Seconds per tensor of evaluation, JSON and text."""
    report, evaluation = measured(lambda: lint_facts(given))
    assert len(report.findings) == count
    _, as_json = measured(lambda: write_json(report, io.StringIO(), ReportOptions()))
    _, as_text = measured(lambda: write_text(report, io.StringIO(), ReportOptions()))
    return [value / count for value in (evaluation, as_json, as_text)]


def test_time_per_tensor_stays_the_same():
    seconds(facts(100), 100)  # imports, and the caches of regular expressions
    per_tensor = []
    for count in SIZES:
        given = facts(count)
        runs = [seconds(given, count) for _ in range(2)]
        per_tensor.append([min(times) for times in zip(*runs, strict=True)])
    for name, times in zip(MOST, zip(*per_tensor, strict=True), strict=True):
        assert max(times[1:]) < MOST[name] * times[0], f"{name}: {times} seconds per tensor for {SIZES} tensors"
