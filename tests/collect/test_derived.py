"""Derived buffers are computed again for every rope type, and garbage is told from rounding."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shardlint import Severity, Target
from shardlint.collect import collect
from shardlint.testing import assert_findings, assert_rule_clean, run_rule
from shardlint_rules.d4_materialization.derived_buffer_wrong import DerivedBufferWrong
from support.models import llama

BOTH = ("model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq")
ROPE = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 16,
        "factor": 2.0,
    },
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}


def rope(kind):
    return llama(rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **ROPE[kind]})


def run(model):
    facts = collect(Target(model=model))
    assert not facts.problems
    return run_rule(DerivedBufferWrong, facts)


def test_every_rope_type_of_the_library_is_covered():
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert set(ROPE) == {"default", *ROPE_INIT_FUNCTIONS}


@pytest.mark.parametrize("kind", ROPE)
@pytest.mark.parametrize("length", [0, 8, 48])
def test_as_built_and_after_short_and_long_sequences(kind, length):
    model = rope(kind)
    if length:
        model(input_ids=torch.ones(1, length, dtype=torch.long))
    assert_rule_clean(run(model))
    if length == 48:
        model(input_ids=torch.ones(1, 8, dtype=torch.long))
        assert_rule_clean(run(model))


@pytest.mark.parametrize("kind", ROPE)
def test_garbage_after_to_empty(kind):
    model = rope(kind)
    model.to("meta").to_empty(device="cpu")
    model.init_weights()  # does nothing: the modules are marked as initialised
    for buffer in model.buffers():
        buffer.uniform_(0.2, 0.9)  # as plausible as garbage can be
    assert_findings(run(model), *BOTH)
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
    model.init_weights()
    assert_rule_clean(run(model))


@pytest.mark.parametrize("kind", [kind for kind in ROPE if kind != "default"])
def test_frequencies_of_another_rope_type(kind):
    model = rope(kind)
    default = rope("default").model.rotary_emb
    expected = [name for name in BOTH if not torch.equal(getattr(default, name[17:]), model.get_buffer(name))]
    for name in ("inv_freq", "original_inv_freq"):
        getattr(model.model.rotary_emb, name).copy_(getattr(default, name))
    assert_findings(run(model), *expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_told_from_garbage(dtype):
    found = run(llama().to(dtype))
    assert_findings(found, *BOTH)
    assert {item.severity for item in found.findings} == {Severity.WARNING}
    assert_findings(run(llama().to(dtype).float()), *BOTH)  # what was lost stays lost


def test_one_wrong_element_is_enough():
    model = llama()
    model.model.rotary_emb.inv_freq[-1] *= 1.5
    found = run(model)
    assert_findings(found, BOTH[0])
    assert found.findings[0].evidence["error"] == pytest.approx(0.5)


def test_a_rotary_embedding_outside_of_any_library_model():
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    model = nn.Module()
    model.rope = LlamaRotaryEmbedding(llama().config)
    assert_rule_clean(run(model))
    model.rope.inv_freq.zero_()
    assert_findings(run(model), "rope.inv_freq")


def test_what_a_module_promises():
    model = nn.Module()
    model.register_buffer("table", torch.arange(4.0), persistent=False)
    model.register_buffer("copy", torch.arange(4.0), persistent=False)
    model._hp_rebuildable_buffer_specs = {
        "table": SimpleNamespace(source=None, factory=lambda: torch.arange(4.0)),
        "copy": SimpleNamespace(source="table", factory=None),
    }
    assert_rule_clean(run(model))
    model.copy.zero_()
    assert_findings(run(model), "copy")
    model.table.zero_()
    assert_findings(run(model), "table")


def test_a_recipe_that_raises_is_unknown():
    def factory():
        raise ValueError("no")

    model = nn.Module()
    model.register_buffer("table", torch.arange(4.0), persistent=False)
    model._hp_rebuildable_buffer_specs = {"table": SimpleNamespace(source=None, factory=factory)}
    (derived,) = collect(Target(model=model)).values.derived
    assert (derived.status, derived.detail) == ("unknown", "computing it again raised ValueError: no")


def test_caches_and_counters_are_no_derived_buffers():
    from transformers import LlamaConfig, LlamaForCausalLM

    class Counting(LlamaForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            self.register_buffer("counts", torch.zeros(4), persistent=False)
            self.register_buffer("cache", torch.zeros(4), persistent=False)

        def _init_weights(self, module):
            super()._init_weights(module)
            if module.__class__ is Counting:
                module.counts.zero_()

    model = Counting(LlamaConfig(**{**llama().config.to_dict(), "num_hidden_layers": 1}))
    model.counts += 3
    model.cache += 3
    assert_rule_clean(run(model))


def test_the_model_is_not_touched():
    model = llama()
    vars(model.model.rotary_emb)["kept"] = torch.ones(3)
    before = copy.deepcopy(model.state_dict()) | {name: item.clone() for name, item in model.named_buffers()}
    versions = {name: item._version for name, item in (*model.named_parameters(), *model.named_buffers())}
    state, attributes = torch.get_rng_state(), {name: sorted(vars(item)) for name, item in model.named_modules()}
    collect(Target(model=model))
    after = model.state_dict() | dict(model.named_buffers())
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert versions == {name: item._version for name, item in (*model.named_parameters(), *model.named_buffers())}
    assert torch.equal(state, torch.get_rng_state())
    assert attributes == {name: sorted(vars(item)) for name, item in model.named_modules()}
