"""The D5 rules on live models and real folders."""

import json

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file, save_file

from shardlint.contract import Contract, Invariant
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.facts import ConversionFacts, LoadFacts
from shardlint.testing import assert_findings, assert_not_evaluated, assert_rule_clean, run_rule
from shardlint_rules.d5_checkpoint.checkpoint_invariant_failed import CheckpointInvariantFailed
from shardlint_rules.d5_checkpoint.conversion_not_reversible import ConversionNotReversible
from shardlint_rules.d5_checkpoint.coverage_incomplete import CoverageIncomplete
from shardlint_rules.d5_checkpoint.header_corrupt import HeaderCorrupt
from shardlint_rules.d5_checkpoint.index_header_disagree import IndexHeaderDisagree
from shardlint_rules.d5_checkpoint.shape_mismatch import ShapeMismatch
from shardlint_rules.d5_checkpoint.shard_file_missing import ShardFileMissing
from shardlint_rules.pack import shardlint_rules
from support.models import bert, gpt2, llama, mixtral, rewrite, saved

from ..live import facts_of

KEY = "model.layers.1.mlp.up_proj.weight"


def run_all(facts):
    evaluation = evaluate(facts, [SelectedRule(rule=rule()) for rule in shardlint_rules()])
    return evaluation, {item.code: item.status for item in evaluation.outcomes}


def index_of(folder):
    path = folder / "model.safetensors.index.json"
    return path, json.loads(path.read_text())


def test_d501_a_renamed_key_in_the_file_and_in_the_index(tmp_path):
    model = llama()
    saved(model, tmp_path)
    renamed = KEY.replace("up_proj", "w_up_proj")
    rewrite(tmp_path, lambda tensors: tensors.update({renamed: tensors.pop(KEY)}) if KEY in tensors else None)
    path, index = index_of(tmp_path)
    index["weight_map"][renamed] = index["weight_map"].pop(KEY)
    path.write_text(json.dumps(index))
    evaluation, _ = run_all(facts_of(model, tmp_path))
    assert [(item.code, item.subject) for item in evaluation.findings] == [("D501", KEY), ("D501", renamed)]
    assert [item.evidence["nearest"][0] for item in evaluation.findings] == [renamed, KEY]
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert_findings(run_rule(CoverageIncomplete, facts_of(loaded, tmp_path, info)), KEY, renamed)


def test_d501_experts_behind_a_conversion(tmp_path):
    model = mixtral()
    saved(model, tmp_path)
    facts = facts_of(model, tmp_path)
    assert_rule_clean(run_rule(CoverageIncomplete, facts))
    assert_not_evaluated(run_rule(CoverageIncomplete, evolve(facts, plan=None)), "a conversion maps")
    rewrite(
        tmp_path,
        lambda tensors: [
            tensors.pop(key)
            for key in list(tensors)
            if "layers.1.mlp.experts" in key or "layers.1.block_sparse_moe.experts" in key
        ],
    )
    lost = ("model.layers.1.mlp.experts.down_proj", "model.layers.1.mlp.experts.gate_up_proj")
    assert_findings(run_rule(CoverageIncomplete, facts_of(model, tmp_path)), *lost)
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert_findings(run_rule(CoverageIncomplete, facts_of(loaded, tmp_path, info)), *lost)


@pytest.mark.live("D501")
def test_d501_a_new_head_is_a_warning(tmp_path):
    from transformers import BertForSequenceClassification

    saved(bert(), tmp_path)
    model, info = BertForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    for facts in (facts_of(model, tmp_path), facts_of(model, tmp_path, info), facts_of(model, None, info)):
        found = run_rule(CoverageIncomplete, facts)
        assert_findings(found, "classifier.weight", "classifier.bias")
        assert {item.severity.value for item in found.findings} == {"warning"}


def test_d501_a_plain_module(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    assert_rule_clean(run_rule(CoverageIncomplete, facts_of(net, tmp_path)))
    net.append(torch.nn.Linear(4, 2))
    assert_findings(run_rule(CoverageIncomplete, facts_of(net, tmp_path)), "2.weight", "2.bias")


def test_d501_causal_masks_of_old_checkpoints(tmp_path):
    model = gpt2()
    saved(model, tmp_path, "1GB")
    old = {f"h.{layer}.attn.bias": torch.ones(1, 1, 32, 32, dtype=torch.bool) for layer in range(2)}
    rewrite(tmp_path, lambda tensors: tensors.update(old))
    assert_rule_clean(run_rule(CoverageIncomplete, facts_of(model, tmp_path)))


@pytest.mark.live("D502")
def test_d502_recorded_conversions():
    reverse = ConversionFacts(
        qualified_type="acme.OneWay", targets=("mlp.experts",), reverse_error="NotImplementedError"
    )
    facts = evolve(facts_of(mixtral()), load=LoadFacts(loader="transformers", conversions=(reverse,)))
    assert_findings(run_rule(ConversionNotReversible, facts), "mlp.experts")


@pytest.mark.live("D503")
def test_d503_a_checker_that_asks_the_live_model():
    def checker(model):
        return {"layers": len(model.model.layers)} if len(model.model.layers) != 2 else None

    declared = Contract(invariants=(Invariant(name="layers", checker=checker, phase="checkpoint"),))
    assert_rule_clean(run_rule(CheckpointInvariantFailed, facts_of(llama(), declared=declared)))
    found = run_rule(CheckpointInvariantFailed, facts_of(llama(num_hidden_layers=3), declared=declared))
    assert_findings(found, "layers")
    assert found.findings[0].evidence == {"layers": 3}


@pytest.mark.live("D504")
def test_d504_a_transposed_matrix(tmp_path):
    model = llama()
    saved(model, tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({KEY: tensors[KEY].T.contiguous()}) if KEY in tensors else None)
    evaluation, _ = run_all(facts_of(model, tmp_path))
    assert [(item.code, item.subject) for item in evaluation.findings] == [("D504", KEY)]
    assert evaluation.findings[0].evidence["relation"] == "transposed"
    loaded, info = type(model).from_pretrained(tmp_path, ignore_mismatched_sizes=True, output_loading_info=True)
    assert_findings(run_rule(ShapeMismatch, facts_of(loaded, tmp_path, info)), KEY)


def test_d505_truncated_pointer_and_missing(tmp_path):
    model = llama()
    saved(model, tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    files[0].write_bytes(files[0].read_bytes()[:-10])
    files[1].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 123\n")
    files[2].unlink()
    evaluation, statuses = run_all(facts_of(model, tmp_path))
    assert {(item.code, item.subject) for item in evaluation.findings} == {("D505", path.name) for path in files[:3]}
    assert {statuses[code] for code in ("D501",)} == {Status.BLOCKED}
    assert statuses["D506"] is Status.NOT_EVALUATED, (
        "whether the keys of a file without a header stand in it is not known"
    )
    assert_not_evaluated(run_rule(ShapeMismatch, facts_of(model, tmp_path)), files[1].name)
    assert len(run_rule(ShardFileMissing, facts_of(model, tmp_path)).findings) == 3


@pytest.mark.live("D506")
def test_d506_the_wrong_shard_and_an_unnamed_key(tmp_path):
    model = llama()
    saved(model, tmp_path)
    path, index = index_of(tmp_path)
    other = next(file for file in index["weight_map"].values() if file != index["weight_map"][KEY])
    index["weight_map"][KEY] = other
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    evaluation, _ = run_all(facts_of(model, tmp_path))
    assert [(item.code, item.subject) for item in evaluation.findings] == [
        ("D506", KEY),
        ("D506", "model.norm.weight"),
    ]
    assert all("the live model wants it" in item.message for item in evaluation.findings)
    assert len(run_rule(IndexHeaderDisagree, facts_of(model, tmp_path)).findings) == 2


@pytest.mark.live("D515")
def test_d515_overlapping_ranges(tmp_path):
    model = bert()
    saved(model, tmp_path, "1GB")
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    first, second = [key for key in header if key != "__metadata__" and header[key]["shape"] == [16]][:2]
    header[second]["data_offsets"] = header[first]["data_offsets"]
    text = json.dumps(header).encode().ljust(size)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    evaluation, statuses = run_all(facts_of(model, tmp_path))
    assert {item.code for item in evaluation.findings} == {"D515"}
    assert statuses["D501"] is Status.BLOCKED
    assert run_rule(HeaderCorrupt, facts_of(model, tmp_path)).findings


@pytest.mark.live("D505")
def test_d505_a_stray_broken_file_blocks_nothing(tmp_path):
    model = llama()
    saved(model, tmp_path)
    (tmp_path / "backup.safetensors").write_bytes(b"")
    evaluation, statuses = run_all(facts_of(model, tmp_path))
    assert {item.severity.value for item in evaluation.findings} <= {"info"}
    assert statuses["D501"] is Status.CLEAN
    assert load_file(sorted(tmp_path.glob("model-*"))[0])
