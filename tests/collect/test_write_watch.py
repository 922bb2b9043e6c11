"""`watch_writes`: exact about what nobody wrote."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import shardlint
from shardlint import Target
from shardlint.collect import collect
from shardlint.testing import assert_findings, assert_rule_clean, run_rule
from shardlint_rules.d4_materialization.never_written import NeverWritten
from shardlint_rules.d4_materialization.non_finite_state import NonFiniteState
from support.models import llama, saved

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def empty(build):
    with torch.device("meta"):
        model = build()
    return model.to_empty(device="cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    model = nn.Module()
    model.register_buffer("never", torch.zeros(5000).to(dtype))
    model.register_buffer("written", torch.zeros(5000).to(dtype))
    model.register_buffer("partly", torch.zeros(4, 3).to(dtype))
    watch = shardlint.watch_writes(model)
    assert set(watch.report().unwritten) == {"never", "partly", "written"}
    model.written.copy_(torch.ones(5000).to(dtype))
    model.partly[1:] = torch.ones(3, 3).to(dtype)
    report = watch.report()
    assert report.unwritten == ("never",)
    if torch.empty(0, dtype=dtype).element_size() > 1:
        assert report.partly == {"partly": (3, 12)}


def test_a_state_dict_with_a_key_missing_is_found_whatever_the_loader_reports():
    model = empty(llama)
    shardlint.watch_writes(model)
    state = llama().state_dict()
    del state["lm_head.weight"]
    model.load_state_dict(state, strict=False)
    info = {"missing_keys": [], "unexpected_keys": []}
    facts = collect(Target(model=model, load_info=info))
    rotary = ["model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"]
    assert_findings(run_rule(NeverWritten, facts), "lm_head.weight", *rotary)
    assert_rule_clean(run_rule(NonFiniteState, facts))


def test_an_initialiser_that_does_nothing():
    model = llama().to("meta").to_empty(device="cpu")
    watch = shardlint.watch_writes(model)
    model.init_weights()  # every module is marked as initialised
    assert len(watch.report().unwritten) == len(set(model.parameters())) + len(set(model.buffers()))
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
    model.init_weights()
    assert watch.report() == shardlint.WriteReport()
    assert_rule_clean(run_rule(NeverWritten, collect(Target(model=model))))


def test_experts_that_were_left_out():
    model = nn.Module()
    model.experts = nn.Parameter(torch.empty(8, 4, 4))
    watch = shardlint.watch_writes(model)
    with torch.no_grad():
        model.experts[:6] = 1.0
    assert watch.report().partly == {"experts": (32, 128)}
    found = run_rule(NeverWritten, collect(Target(model=model)))
    assert_findings(found, "experts")
    assert "32 of its 128 elements not written" in found.findings[0].message


def test_replaced_and_assigned_tensors_count_as_written():
    model = nn.Linear(2, 2)
    watch = shardlint.watch_writes(model)
    model.load_state_dict({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}, assign=True)
    assert watch.report() == shardlint.WriteReport()


def test_sharding_afterwards_keeps_what_is_known(one_rank):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    watch = shardlint.watch_writes(model)
    fully_shard(model)
    with torch.no_grad():
        model[0].weight.zero_()
    assert watch.report().unwritten == ("0.bias", "1.bias", "1.weight")
    assert_findings(run_rule(NeverWritten, collect(Target(model=model))), "0.bias", "1.weight", "1.bias")


def test_the_watch_is_found_through_wrappers():
    model = nn.Linear(2, 2)
    shardlint.watch_writes(model)
    wrapped = torch.compile(model)
    assert_findings(run_rule(NeverWritten, collect(Target(model=wrapped))), "weight", "bias")


def test_a_watch_keeps_no_model_alive():
    model = nn.Linear(2, 2)
    watch, reference = shardlint.watch_writes(model), weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    with pytest.raises(RuntimeError, match="does not exist"):
        watch.report()


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match="expected a"):
        shardlint.watch_writes([])


def test_zeros_after_a_full_match_are_a_hint_without_the_watch(tmp_path):
    model = llama()
    saved(model, tmp_path)
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    with torch.no_grad():
        loaded.lm_head.weight.zero_()
    found = run_rule(NeverWritten, collect(Target(model=loaded, load_info=info)))
    assert_findings(found, "lm_head.weight")
    assert found.findings[0].severity is shardlint.Severity.WARNING
