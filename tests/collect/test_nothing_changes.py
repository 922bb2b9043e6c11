"""Collecting changes nothing: state, gradients, random states, flags, hooks, configuration, recorded conversions."""

import copy
import random

import numpy
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from shardlint import Target
from shardlint.collect import collect
from shardlint.collect.tensors import sample_of
from shardlint.contract import Contract, Invariant
from shardlint.facts.codec import encode_facts
from shardlint.introspect.walk import walk

TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_pre_hooks",
)


def llama():
    return LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=2, tie_word_embeddings=True))


def mixtral(tmp_path):
    built = MixtralForCausalLM(MixtralConfig(**TINY, num_key_value_heads=2, num_local_experts=2))
    built.save_pretrained(tmp_path)
    return MixtralForCausalLM.from_pretrained(tmp_path)


def picture(model):
    """Everything that a collector could change, as comparable values."""
    tensors = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return {
        "bits": {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()},
        "identity": {name: id(tensor) for name, tensor in tensors.items()},
        "versions": {name: tensor._version for name, tensor in tensors.items()},
        "requires_grad": {name: tensor.requires_grad for name, tensor in tensors.items()},
        "grads": {
            name: None if tensor.grad is None else tensor.grad.clone().numpy().tobytes()
            for name, tensor in tensors.items()
        },
        "training": {name: module.training for name, module in model.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "hooks": {
            (name, kind): list(getattr(module, kind)) for name, module in model.named_modules() for kind in HOOKS
        },
        "config": copy.deepcopy(model.config.to_dict()),
        "config_attributes": sorted(vars(model.config)),
        "conversions": [
            {
                slot: repr(getattr(item, slot, None))
                for slot in ("source_patterns", "target_patterns", "operations", "scope_prefix")
            }
            for item in getattr(model, "_weight_conversions", None) or []
        ],
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(numpy.random.get_state()),
        "python": random.getstate(),
        "grad_mode": torch.is_grad_enabled(),
        "default_dtype": torch.get_default_dtype(),
    }


@pytest.mark.parametrize("kind", ["llama", "mixtral", "bert"])
def test_nothing_changes(kind, tmp_path):
    model = {"llama": llama, "mixtral": lambda: mixtral(tmp_path), "bert": lambda: BertModel(BertConfig(**TINY))}[
        kind
    ]()
    model.train()
    list(model.modules())[3].eval()
    next(model.parameters()).requires_grad_(False)
    model.register_forward_hook(lambda *args: None)
    output = model(input_ids=torch.ones(1, 3, dtype=torch.long))
    output[0].float().sum().backward()
    model.save_pretrained(tmp_path)
    optimizer = torch.optim.AdamW(model.parameters())
    before = picture(model)
    facts = collect(Target(model=model, checkpoint=tmp_path, optimizer=optimizer))
    assert picture(model) == before
    assert not facts.problems
    assert optimizer.state_dict()["state"] == {}
    assert encode_facts(collect(Target(model=model, checkpoint=tmp_path, optimizer=optimizer))) == encode_facts(facts)


def test_checkers_that_draw_random_numbers_leave_no_trace():
    def drawing(model):
        torch.rand(3), random.random(), numpy.random.rand()
        assert not torch.is_grad_enabled()

    model = llama()
    contract = Contract(invariants=[Invariant(name="draws", checker=drawing)])
    before = picture(model)
    facts = collect(Target(model=model, contract=contract))
    assert facts.contract.invariants[0].status == "passed"
    assert picture(model) == before


def test_memory_can_still_be_resized():
    """FSDP frees gathered parameters by resizing their storage; what numpy has seen refuses that for ever."""
    model = llama()
    model.norm = nn.Linear(2, 2)
    model.register_buffer("flags", torch.ones(4, dtype=torch.bool), persistent=False)
    facts = collect(Target(model=model))
    assert facts.values.tensors
    assert sample_of(walk(model))
    assert all(item.untyped_storage().resizable() for item in (*model.parameters(), *model.buffers()))


def test_a_lazy_model_stays_lazy():
    model = nn.Sequential(nn.LazyLinear(3))
    collect(Target(model=model))
    assert model[0].has_uninitialized_params()
