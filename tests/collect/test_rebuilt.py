"""Buffers of anybody's own modules are computed again by their constructors, and never guessed to be wrong."""

import pytest
import torch
from torch import nn

from shardlint import Target
from shardlint.collect import collect
from shardlint.testing import assert_findings, assert_not_evaluated, assert_rule_clean, run_rule
from shardlint_rules.d4_materialization.derived_buffer_wrong import DerivedBufferWrong


def angles(width, length, theta=10000.0):
    return torch.outer(torch.arange(length).float(), 1 / theta ** (torch.arange(0, width, 2).float() / width))


class Tables(nn.Module):
    """As people write them, with nothing kept."""

    def __init__(self, width=16, length=32, theta=10000.0):
        super().__init__()
        self.register_buffer("freqs_cos", angles(width, length, theta).cos(), persistent=False)
        self.register_buffer("freqs_sin", angles(width, length, theta).sin(), persistent=False)


class Kept(Tables):
    def __init__(self, width, length, theta):
        super().__init__(width, length, theta)
        self.width, self.length, self.theta = width, length, theta


class Complex(nn.Module):
    """A whole model that has the table at its root, and its settings in one object."""

    def __init__(self, settings, layers=100):
        super().__init__()
        self.settings, self.layers = settings, layers
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        table = torch.polar(torch.ones(32, 8), angles(**settings))
        self.register_buffer("freqs_cis", table, persistent=False)


class Slopes(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.register_buffer("slopes", 2.0 ** -torch.arange(1.0, heads + 1), persistent=False)
        self.register_buffer("noise", torch.randn(heads), persistent=False)
        self.register_buffer("mask", torch.tril(torch.ones(heads, heads, dtype=torch.bool)), persistent=False)
        self.register_buffer("index", torch.arange(heads), persistent=False)
        self.register_buffer("cache", torch.zeros(heads), persistent=False)


class Demanding(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.register_buffer("frozen_table", table * 2, persistent=False)


def run(model):
    facts = collect(Target(model=model))
    assert not facts.problems
    return run_rule(DerivedBufferWrong, facts)


def root(module):
    return nn.ModuleDict({"inner": module})


@pytest.mark.parametrize("make", [Tables, lambda: Kept(32, 8, 500.0), lambda: Complex({"width": 16, "length": 32})])
def test_what_the_constructor_gives_is_right_and_zeros_are_not(make):
    model = root(make())
    assert_rule_clean(run(model))
    for buffer in model.buffers():
        buffer.zero_()
    assert_findings(run(model), *(name for name, _ in model.named_buffers()))


def test_arguments_that_are_kept_nowhere_are_unknown():
    reason = "no recipe: nobody knows what Tables was built with (width, length, theta)"
    assert_not_evaluated(run(root(Tables(8, 16))), reason)


def test_another_default_is_no_defect():
    model = root(Tables(theta=500.0))
    assert_not_evaluated(run(model), "inner.freqs_cos: no recipe: nobody knows what Tables was built with")
    model.inner.freqs_cos.fill_(float("nan"))
    assert_findings(run(model), "inner.freqs_cos")


def test_kept_arguments_make_a_different_value_certain():
    model = root(Kept(32, 8, 500.0))
    model.inner.freqs_cos[3, 2] += 0.25
    assert_findings(run(model), "inner.freqs_cos")


def test_slopes_masks_and_indices_are_compared_and_caches_may_change():
    model = root(Slopes(4))
    model.inner.cache += 3
    assert_not_evaluated(run(model), "inner.noise: no recipe computes it")
    del model.inner.noise
    model.inner.register_buffer("noise", None)
    assert_rule_clean(run(model))
    model.inner.slopes[1] = 0.3
    model.inner.mask[0, 3] = True
    model.inner.index[2] = 7
    assert_findings(run(model), "inner.slopes", "inner.mask", "inner.index")


def test_a_constructor_that_takes_what_nobody_keeps():
    model = root(Demanding(torch.ones(3)))
    assert_not_evaluated(run(model), "its module does not keep table, which its constructor takes")


def test_frequencies_without_a_recipe_have_to_fall():
    class Own(nn.Module):
        def __init__(self, values):
            super().__init__()
            self.register_buffer("inv_freq", values.clone(), persistent=False)

    assert_not_evaluated(run(root(Own(torch.tensor([1.0, 0.5, 0.1])))), "inner.inv_freq")
    assert_findings(run(root(Own(torch.tensor([6.9e-18, 0.3, 0.2])))), "inner.inv_freq")


def test_building_again_draws_no_random_number_and_prints_nothing(capsys):
    class Loud(Slopes):
        def __init__(self, heads):
            super().__init__(heads)
            print("loud")
            self.weight = nn.Linear(heads, heads)

    model = root(Loud(4))
    capsys.readouterr()
    state, modules = torch.get_rng_state(), len(list(model.modules()))
    collect(Target(model=model))
    assert torch.equal(state, torch.get_rng_state())
    assert len(list(model.modules())) == modules
    assert capsys.readouterr().out == ""


def test_a_large_module_is_built_on_meta():
    made = []

    class Large(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.width = width
            self.weight = nn.Parameter(torch.empty(width, width))
            made.append(self.weight.device.type)
            nn.init.normal_(self.weight)
            self.register_buffer("steps", torch.arange(1.0, 5.0), persistent=False)

    assert_rule_clean(run(Large(256)))
    assert made == ["cpu", "meta", "meta"]
