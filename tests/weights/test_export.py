"""V004 and the road back: what an export would write, against what Transformers really writes."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from shardlint import LiveTarget, Severity
from shardlint.checkpoint.folder import collect_checkpoint
from shardlint.collect.model import model_facts
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.introspect.walk import walk
from shardlint.weights import ExportUnknownError, WeightsVerdict, check_export, verify
from shardlint_rules.v0_validation.export_differs import ExportDiffers
from support.loaded_models import loaded, mixtral_config, saved
from support.shrink import quiet


def gpt_oss():
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        layer_types=["sliding_attention", "full_attention"],
    )
    return config, GptOssForCausalLM


def qwen3_moe():
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        tie_word_embeddings=True,
    )
    return config, Qwen3MoeForCausalLM


def mixtral():
    from transformers import MixtralForCausalLM

    return mixtral_config(), MixtralForCausalLM


def phi3():
    from transformers import Phi3Config, Phi3ForCausalLM

    config = Phi3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    return config, Phi3ForCausalLM


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return saved(tmp_path_factory.mktemp("llama"), config, LlamaForCausalLM)


def loaded_llama(folder, **settings):
    from transformers import LlamaForCausalLM

    return loaded(folder, LlamaForCausalLM, **settings)


def rewritten(llama, folder, change):
    """A checkpoint with the configuration of `llama` and what `change` makes of its tensors."""
    tensors = change(load_file(llama / "model.safetensors"))
    save_file(
        {key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    (folder / "config.json").write_text((llama / "config.json").read_text())
    return folder


def fused(tensors):
    """Gate and up of every layer in one tensor."""
    found = dict(tensors)
    for name in tensors:
        if name.endswith("gate_proj.weight"):
            up = found.pop(name.replace("gate_proj", "up_proj"))
            found[name.replace("gate_proj", "gate_up")] = torch.cat([found.pop(name), up])
    return found


def findings(model, folder):
    (outcome,) = (found := evaluate_rule(model, folder)).outcomes
    return outcome, found.findings


def evaluate_rule(model, folder):
    from shardlint import Facts

    rule = SelectedRule(rule=ExportDiffers(), explicit=True)
    return evaluate(Facts(), [rule], live=LiveTarget(model=model, checkpoint=folder))


@pytest.mark.parametrize("family", [mixtral, qwen3_moe, gpt_oss, phi3])
def test_a_right_export_is_the_identity_and_is_what_saving_writes(family, tmp_path):
    from shardlint.weights import export

    config, kind = family()
    folder = saved(tmp_path / "one", config, kind)
    model = loaded(folder, kind)
    outcome, found = findings(model, folder)
    assert (outcome.status, found) == (Status.CLEAN, ())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    again = _exported(export, model, folder)
    with quiet():
        model.save_pretrained(tmp_path / "two")
    written = load_file(tmp_path / "two" / "model.safetensors")
    assert set(written) == set(again.live)
    for key, tensor in again.live.items():
        _equal(tensor, written[key], state)
    assert check_export(model, folder) == ()  # saving rewrites the recorded patterns in place


def _exported(export, model, folder):
    facts = model_facts(walk(model))
    load = export.ModelLoad.of(model, facts)
    return export._exported(load, export.forward_of_load(load, collect_checkpoint(folder), cast=False))


def _equal(tensor, written, state):
    """Every element that was followed is the one that Transformers wrote."""
    from shardlint.weights.positions import origin_at, unravelled

    shape = tuple(written.shape)
    assert tuple(tensor.shape) == shape
    for at in range(0, written.numel(), max(1, written.numel() // 40)):
        origin = origin_at(tensor, at)
        assert state[origin.source.name].reshape(-1)[origin.flat] == written[unravelled(at, shape)]


def test_a_model_without_a_record_is_exported_by_its_type(tmp_path):
    config, kind = mixtral()
    folder = saved(tmp_path, config, kind)
    model = loaded(folder, kind)
    model._weight_conversions = None
    assert check_export(model, folder) == ()


def test_lost_conversions_are_information_as_long_as_the_export_loads(tmp_path):
    config, kind = mixtral()
    folder = saved(tmp_path, config, kind)
    model = loaded(folder, kind)
    model._weight_conversions = []
    outcome, found = findings(model, folder)
    assert outcome.status is Status.FOUND
    assert {finding.severity for finding in found} == {Severity.INFO}
    assert {finding.key.partition(":")[0] for finding in found} == {"renamed", "absent", "added"}
    absent = next(item for item in found if item.key.startswith("absent") and "w1" in item.key)
    assert absent.subject == "model.layers.{0..1}.mlp.experts.gate_up_proj"
    assert absent.message.startswith("this export is not reversible: MergeModulelist and Concatenate: ")
    assert absent.evidence["count"] == 8
    assert verify(model, folder).verdict is WeightsVerdict.PASS


def swapped_chunk():
    """A conversion whose reverse joins the halves the wrong way round."""
    from transformers.core_model_loading import Chunk, Concatenate, WeightConverter

    class JoinTurned(Concatenate):
        def convert(self, input_dict, source_patterns, target_patterns, **kwargs):
            turned = dict(reversed(input_dict.items()))
            return super().convert(turned, source_patterns[::-1], target_patterns, **kwargs)

    class Halves(Chunk):
        @property
        def reverse_op(self):
            return JoinTurned(self.dim)

    return WeightConverter("mlp.gate_up.weight", ["mlp.gate_proj.weight", "mlp.up_proj.weight"], [Halves(dim=0)])


def test_a_wrong_reverse_is_told_with_its_first_element(llama, tmp_path):
    folder = rewritten(llama, tmp_path, fused)
    model = loaded_llama(llama)
    model._weight_conversions = [swapped_chunk()]
    assert verify(model, folder).verdict is WeightsVerdict.PASS  # the load is right, only the export is not
    outcome, found = findings(model, folder)
    assert outcome.status is Status.FOUND
    place = next(item for item in found if item.key.startswith("place"))
    assert place.severity is Severity.WARNING
    assert place.subject == "model.layers.{0..1}.mlp.up_proj.weight"
    assert place.message == (
        "this export is not reversible: Halves: model.layers.0.mlp.gate_up.weight[0, 0] would be the live "
        "model.layers.0.mlp.up_proj.weight[0, 0], which was loaded from model.layers.0.mlp.gate_up.weight[24, 0] "
        "(2 like this)"
    )
    reloads = [item for item in found if item.key.startswith("reload")]
    assert {item.severity for item in reloads} == {Severity.ERROR}
    assert "its element [0, 0] would be model.layers.0.mlp.up_proj.weight[0, 0]" in reloads[0].message


def test_a_conversion_without_a_reverse_is_named(llama, tmp_path):
    from transformers.core_model_loading import Chunk, WeightConverter

    class OneWay(Chunk):
        @property
        def reverse_op(self):
            raise NotImplementedError("one way only")

    folder = rewritten(llama, tmp_path, fused)
    model = loaded_llama(llama)
    targets = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
    model._weight_conversions = [WeightConverter("mlp.gate_up.weight", targets, [OneWay(dim=0)])]
    assert verify(model, folder).verdict is WeightsVerdict.PASS
    _, (finding,) = findings(model, folder)
    assert finding.severity is Severity.ERROR
    assert (
        "not reversible: OneWay: OneWay of mlp.gate_proj.weight, mlp.up_proj.weight has no reverse" in finding.message
    )


def test_unequal_parts_come_back_with_other_shapes(llama, tmp_path):
    """`Concatenate` is reversed into equal chunks: wrong keys, though loading them joins them again."""
    from transformers.core_model_loading import Concatenate, WeightConverter

    def cut(tensors):
        whole = tensors.pop("model.embed_tokens.weight")
        return {**tensors, "model.old.weight": whole[:40], "model.new.weight": whole[40:]}

    folder = rewritten(llama, tmp_path, cut)
    model = loaded_llama(llama)
    sources = ["model.old.weight", "model.new.weight"]
    model._weight_conversions = [WeightConverter(sources, "model.embed_tokens.weight", [Concatenate(dim=0)])]
    assert verify(model, folder).verdict is WeightsVerdict.PASS
    _, found = findings(model, folder)
    assert max(item.severity for item in found) is Severity.WARNING  # loading the export joins the parts again
    shapes = [item for item in found if item.key.startswith("shape")]
    assert {item.severity for item in shapes} == {Severity.WARNING}
    assert "written with the shape [32, 16], stored is [40, 16]" in " ".join(item.message for item in shapes)
    assert all("Concatenate" in item.message for item in shapes)


def test_what_cannot_be_followed_is_not_evaluated(llama):
    from torch import nn

    plain = nn.Linear(2, 2)
    with pytest.raises(ExportUnknownError, match="none of Transformers and recorded no conversions"):
        check_export(plain, llama)
    outcome, found = findings(plain, llama)
    assert (outcome.status, found) == (Status.NOT_EVALUATED, ())
    (outcome,) = evaluate_rule(None, llama).outcomes
    assert outcome.status is Status.NOT_EVALUATED


def patterns_of(model):
    names = ("source_patterns", "target_patterns", "_original_source_patterns", "_original_target_patterns")
    return [json.dumps([getattr(item, name) for name in names]) for item in model._weight_conversions]


def test_the_model_is_not_touched(llama, tmp_path):
    from shardlint.loading.plan import collect_plan

    folder = rewritten(llama, tmp_path, lambda tensors: {f"x.{key}.y": value for key, value in tensors.items()})
    model = loaded_llama(folder, key_mapping={r"^x\.(.+)\.y$": r"\1"})
    record, keys = patterns_of(model), set(vars(model))
    assert len(record) == 1
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_export(model, folder)
    collect_plan(collect_checkpoint(folder), model=model, model_facts=model_facts(walk(model)))
    assert set(vars(model)) == keys
    assert patterns_of(model) == record
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_road_of_a_user(llama, tmp_path, monkeypatch, capsys):
    """The rule from the command line, on a builder."""
    from shardlint.cli.main import main

    folder = rewritten(llama, tmp_path, fused)
    (tmp_path / "build.py").write_text(
        "from transformers import LlamaForCausalLM\n"
        "from weights.test_export import swapped_chunk\n"
        "def model():\n"
        f"    made = LlamaForCausalLM.from_pretrained({str(llama)!r})\n"
        "    made._weight_conversions = [swapped_chunk()]\n"
        "    return made\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["lint", "build.py:model", "--checkpoint", str(folder), "--isolated"]
    with quiet():
        assert main([*arguments, "--select", "V002"]) == 0
        capsys.readouterr()
        assert main([*arguments, "--select", "V004"]) == 1
    told = capsys.readouterr().out
    assert "V004" in told
    assert "this export is not reversible: Halves" in told


def test_a_prefix_is_one_finding(llama):
    from transformers import LlamaModel

    model = loaded(llama, LlamaModel)
    _, found = findings(model, llama)
    told = {item.key.partition(":")[0]: item for item in found}
    assert set(told) == {"renamed", "absent"}
    assert len(found) == 2
    assert told["renamed"].evidence["count"] == 20
    assert told["renamed"].subject == "model.embed_tokens.weight and 19 more"
    assert told["absent"].message == (
        "this export is not reversible: loading: lm_head.weight would not be written: no live tensor took it"
    )
    assert {item.severity for item in found} == {Severity.INFO}
