"""Faults that were seen in real checkpoints, planted into small real ones, and found by the rule that is for them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shardlint import Finding, Severity
from shardlint.engine.runner import evaluate
from support.folders import Files, edit, read_files
from support.linting import CHECKPOINT_RULES, facts_of, findings_of, mentions
from support.shrink import quiet
from support.tiny import deepseek, llama, mixtral, saved


def only(folder: Path, code: str, model: Any = None) -> Finding:
    found = [item for item in findings_of(facts_of(folder, model), code) if item.severity is not Severity.INFO]
    assert len(found) == 1, found
    return found[0]


def alarms(folder: Path, model: Any = None) -> set[str]:
    return {item.code for item in findings_of(facts_of(folder, model)) if item.severity is not Severity.INFO}


@pytest.mark.parametrize("build", [llama, mixtral, deepseek])
@pytest.mark.parametrize("shards", [1, 3])
def test_sound_checkpoints_are_clean_from_the_folder_and_with_the_model(
    build: Any, shards: int, tmp_path: Path
) -> None:
    model = build()
    saved(model, tmp_path, shards=shards)
    assert alarms(tmp_path) == set()
    assert alarms(tmp_path, model) == set()


def test_a_shadow_tensor_in_a_later_shard(tmp_path: Path) -> None:
    model = llama()
    saved(model, tmp_path, shards=2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    early, late = load_file(first), load_file(second)
    key = next(iter(early))
    save_file({**late, key: early[key] + 1}, second, {"format": "pt"})
    with torch.no_grad():
        loaded = type(model).from_pretrained(tmp_path)
    assert not torch.equal(loaded.state_dict()[key], early[key])  # the loader takes the shadow
    finding = only(tmp_path, "D507")
    assert finding.subject == first.name
    assert mentions(finding, key)
    assert finding.evidence["against_the_index"] == (key,)
    save_file({**late, key: early[key]}, second, {"format": "pt"})
    assert "D507" not in alarms(tmp_path)  # the same bytes twice


def test_a_shard_of_an_earlier_save(tmp_path: Path) -> None:
    saved(llama(), tmp_path, shards=2)
    first = min(tmp_path.glob("*.safetensors"))
    tensors = {key: value + 1 for key, value in load_file(first).items()}
    save_file(tensors, tmp_path / "model-00003-of-00003.safetensors")
    assert only(tmp_path, "D507").subject == "model-00003-of-00003.safetensors"


def test_an_index_that_lists_a_tensor_its_file_lacks(tmp_path: Path) -> None:
    saved(llama(), tmp_path, shards=2)

    def change(files: Files) -> None:
        del next(iter(files.values()))["model.embed_tokens.weight"]

    before = read_files(tmp_path)
    first = next(iter(before))
    edit(tmp_path, lambda files: change(files) or {"model.embed_tokens.weight": first})
    assert mentions(only(tmp_path, "D506"), "model.embed_tokens.weight")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "policy.net."])
@pytest.mark.parametrize("build", [llama, mixtral])
def test_a_wrapped_model_was_saved(build: Any, prefix: str, tmp_path: Path) -> None:
    model = build()
    saved(model, tmp_path)

    def change(files: Files) -> None:
        for name, tensors in files.items():
            files[name] = {prefix + key: value for key, value in tensors.items()}

    edit(tmp_path, change)
    for live in (None, model):
        finding = only(tmp_path, "D510", live)
        assert finding.subject in (prefix, prefix.partition(".")[0])
        found = findings_of(facts_of(tmp_path, live), "D501")
        assert found == []  # blocked: one finding instead of one for each key


def test_checkpoint_wrappers_inside_the_names(tmp_path: Path) -> None:
    saved(llama(), tmp_path)

    def change(files: Files) -> None:
        for name, tensors in files.items():
            files[name] = {
                key.replace(".layers.0.", ".layers.0._checkpoint_wrapped_module.").replace(
                    ".layers.1.", ".layers.1._checkpoint_wrapped_module."
                ): value
                for key, value in tensors.items()
                if ".layers." in key
            }

    edit(tmp_path, change)
    assert only(tmp_path, "D510").subject == "_checkpoint_wrapped_module"


def test_a_tied_pair_stored_twice(tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=True)
    saved(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert alarms(tmp_path) == set()  # equal bytes
    tensors["lm_head.weight"][3, 3] += 1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert only(tmp_path, "D512").subject == "lm_head.weight"
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.lm_head.weight is not loaded.model.embed_tokens.weight  # the loader gives the tie up
    assert only(tmp_path, "D512", loaded).subject == "lm_head.weight"


def test_a_shared_layer_stored_once_for_each_of_its_names(tmp_path: Path) -> None:
    shared = torch.nn.Linear(4, 4)
    model = torch.nn.ModuleDict({"first": shared, "second": shared, "other": torch.nn.Linear(4, 4)})
    stored = {name: value.clone() for name, value in model.state_dict().items()}
    save_file(stored, tmp_path / "model.safetensors")
    assert alarms(tmp_path, model) == set()  # equal bytes
    stored["second.weight"][1, 1] += 1
    save_file(stored, tmp_path / "model.safetensors")
    finding = only(tmp_path, "D512", model)
    assert finding.subject == "second.weight"
    assert mentions(finding, "first.weight")


def fp8(folder: Path, scale: str) -> Path:
    """A llama whose projections are fp8 with block scales of the given spelling."""
    saved(llama(), folder)
    tensors = load_file(folder / "model.safetensors")
    for key in [key for key in tensors if "_proj." in key]:
        tensors[key] = tensors[key].to(torch.float8_e4m3fn)
        tensors[key.removesuffix("weight") + scale] = torch.ones(1, 1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = (folder / "config.json").read_text()
    settings = '"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},'
    (folder / "config.json").write_text(config.replace("{", "{" + settings, 1))
    return folder


@pytest.mark.parametrize("scale", ["weight_scale_inv", "scale", "qscale_weight"])
def test_fp8_with_scales_that_the_scheme_reads(scale: str, tmp_path: Path) -> None:
    facts = facts_of(fp8(tmp_path, scale))
    assert facts.plan is not None
    assert facts.plan.quantization.startswith("fp8")
    assert {item.status for item in facts.plan.tensors} == {"loaded"}
    assert [item for item in facts.plan.leftovers if item.reason == "unexpected"] == []
    assert findings_of(facts, "D511", "D501", "D504") == []


def test_fp8_with_scales_of_another_spelling(tmp_path: Path) -> None:
    found = findings_of(facts_of(fp8(tmp_path, "weight_scale")), "D511")
    assert len(found) == 14
    assert all(mentions(item, "scheme fp8", "weight_scale_inv") for item in found)


def test_a_live_model_that_was_dequantised_while_loading(tmp_path: Path) -> None:
    fp8(tmp_path, "weight_scale_inv")
    from transformers import LlamaForCausalLM

    with quiet():
        model = LlamaForCausalLM.from_pretrained(tmp_path)
    assert model.model.layers[0].mlp.up_proj.weight.dtype.itemsize > 1  # this host has no GPU
    facts = facts_of(tmp_path, model)
    assert facts.plan is not None
    assert facts.plan.quantization == "fp8, dequantised while loading"
    assert findings_of(facts, "D501", "D504", "D511") == []


def test_int8_values_without_scales(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    key = "model.layers.0.mlp.up_proj.weight"
    edit(tmp_path, lambda files: files["model.safetensors"].update({key: ("I8", [32, 16])}))
    assert mentions(only(tmp_path, "D511"), key, "cast to float32")


def expert(layer: int, number: int) -> str:
    return f"model.layers.{layer}.block_sparse_moe.experts.{number}."


def test_experts_numbered_from_one(tmp_path: Path) -> None:
    model = mixtral()
    saved(model, tmp_path)
    keys = list(read_files(tmp_path)["model.safetensors"])
    assert any(key.startswith(expert(0, 0)) for key in keys)

    def change(files: Files) -> None:
        for name, tensors in files.items():
            moved = {}
            for key, value in tensors.items():
                number = next((number for number in range(4) if key.startswith(expert(0, number))), None)
                moved[key if number is None else key.replace(expert(0, number), expert(0, number + 1))] = value
            files[name] = moved

    edit(tmp_path, change)
    for live in (None, model):
        found = findings_of(facts_of(tmp_path, live), "D522")
        assert {item.subject for item in found} == {
            "model.layers.0.mlp.experts.gate_up_proj",
            "model.layers.0.mlp.experts.down_proj",
        }
        assert all(mentions(item, "numbered 1..4") for item in found)


def test_experts_renumbered_from_zero_on_each_rank(tmp_path: Path) -> None:
    saved(mixtral(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    ranks: list[dict[str, torch.Tensor]] = [{}, {}]
    for key, value in tensors.items():
        number = int(key.split(".experts.")[1].split(".")[0]) if ".experts." in key else None
        if number is None:
            ranks[0][key] = value
        else:
            ranks[number // 2][key.replace(f".experts.{number}.", f".experts.{number % 2}.")] = value
    for rank, part in enumerate(ranks):
        save_file(part, tmp_path / f"model-{rank + 1:05}-of-00002.safetensors", {"format": "pt"})
    names = {key: f"model-{rank + 1:05}-of-00002.safetensors" for rank, part in enumerate(ranks) for key in part}
    import json

    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    found = findings_of(facts_of(tmp_path), "D522")
    assert any(mentions(item, "each numbered its own from zero") for item in found)
    assert any(mentions(item, "has 4 experts, 2 are stored") for item in found)


def test_fused_and_separate_experts_in_one_file(tmp_path: Path) -> None:
    model = mixtral()
    saved(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj"
    tensors[name] = model.state_dict()[name].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert mentions(only(tmp_path, "D508"), name, "stored in two forms")


def test_two_keys_for_one_tensor(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert only(tmp_path, "D508").subject == "model.norm.weight"


def test_layers_that_were_not_stored(tmp_path: Path) -> None:
    saved(llama(num_hidden_layers=3), tmp_path)
    edit(
        tmp_path,
        lambda files: files.update(
            {
                name: {key: value for key, value in part.items() if ".layers.2." not in key}
                for name, part in files.items()
            }
        ),
    )
    finding = only(tmp_path, "D522")
    assert finding.subject == "model.layers.2"
    assert mentions(finding, "numbers 0..1 are stored, 2 are not")


@pytest.mark.parametrize(("shape", "said"), [([512], "flattened"), ([128], "one of 4 parts"), ([0], "no elements")])
def test_a_flat_shard_in_the_place_of_a_matrix(shape: list[int], said: str, tmp_path: Path) -> None:
    model = llama()
    saved(model, tmp_path)
    key = "model.layers.0.mlp.up_proj.weight"
    edit(tmp_path, lambda files: files["model.safetensors"].update({key: ("F32", shape)}))
    for live in (None, model):
        finding = only(tmp_path, "D517", live)
        assert mentions(finding, said)
        assert finding.subject == key


def test_a_multi_token_prediction_block_hidden_by_an_ignore_pattern(tmp_path: Path) -> None:
    class WithPrediction(type(deepseek())):  # type: ignore[misc]
        _keys_to_ignore_on_load_unexpected = [r"model\.layers\.2.*"]

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.mtp = torch.nn.ModuleDict({"mlp": type(self.model.layers[0].mlp)(config)})

    plain = deepseek(num_hidden_layers=3, first_k_dense_replace=3)
    saved(plain, tmp_path)
    torch.manual_seed(0)
    plain.config.num_hidden_layers = 2
    model = WithPrediction(plain.config)
    finding = only(tmp_path, "D518", model)
    assert finding.subject == r"model\.layers\.2.*"
    assert finding.evidence["wanted"] == 3
    assert mentions(finding, "model.layers.2.mlp.down_proj.weight fits mtp.mlp.down_proj.weight")


def adapter(folder: Path, model: Any) -> Path:
    from peft import LoraConfig, get_peft_model

    with quiet():
        get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder)
    return folder


def test_an_adapter_for_this_model_and_one_with_another_prefix(tmp_path: Path) -> None:
    from shardlint import Facts
    from shardlint.checkpoint.folder import collect_checkpoint
    from shardlint.collect.model import model_facts
    from shardlint.introspect.walk import walk

    folder = adapter(tmp_path / "adapter", llama())
    live = model_facts(walk(llama()))
    assert findings_of(Facts(checkpoint=collect_checkpoint(folder), model=live), "D520") == []
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({key.replace("model.layers", "language_model.layers"): value for key, value in tensors.items()}, file)
    found = findings_of(Facts(checkpoint=collect_checkpoint(folder), model=live), "D520")
    assert len(found) == 1
    assert found[0].evidence["removed"] == "language_model."
    assert found[0].evidence["added"] == "model."


def test_the_base_of_an_adapted_model_is_planned(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    saved(llama(), tmp_path)
    with quiet():
        adapted = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj"]))
    facts = facts_of(tmp_path, adapted)
    assert facts.plan is not None
    assert {item.status for item in facts.plan.tensors} == {"loaded"}
    assert facts.plan.leftovers == ()
    assert findings_of(facts, "D501", "D504", "D510") == []


def test_a_compiled_model_is_planned_under_its_own_names(tmp_path: Path) -> None:
    model = mixtral()
    saved(model, tmp_path)
    facts = facts_of(tmp_path, torch.compile(model))
    assert facts.plan is not None
    assert {item.status for item in facts.plan.tensors} == {"loaded"}
    assert facts.plan.loader.startswith("transformers")


def test_saving_an_alias_that_the_configuration_denies(tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=False)
    model.lm_head.weight = model.model.embed_tokens.weight
    saved(model, tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")  # saving dropped it
    assert only(tmp_path, "D519", model).subject == "lm_head.weight"
    assert "D519" not in alarms(saved(llama(), tmp_path / "other"), llama())


def test_a_load_that_did_not_apply_the_conversion(tmp_path: Path) -> None:
    from attrs import evolve

    from shardlint.facts import LoadFacts

    model = mixtral()
    saved(model, tmp_path)
    result = model.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    load = LoadFacts(
        loader="load_state_dict", missing=tuple(result.missing_keys), unexpected=tuple(result.unexpected_keys)
    )
    found = findings_of(evolve(facts_of(tmp_path, model), load=load), "D521")
    assert {item.subject for item in found} == set(result.missing_keys)


def test_pickles_are_reported_and_not_opened(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/opened'\ntR.")
    assert only(tmp_path, "D514").subject == "pytorch_model.bin"


def test_dtypes_that_lose_digits(tmp_path: Path) -> None:
    model = llama()
    saved(model, tmp_path)
    found = findings_of(facts_of(tmp_path, model.to(torch.bfloat16)), "D513")
    assert [item.subject for item in found] == ["F32->bfloat16"]
    assert found[0].evidence["count"] == 21


def test_a_renaming_that_does_not_lead_back(tmp_path: Path) -> None:
    from transformers.conversion_mapping import register_checkpoint_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    class Renamed(type(llama())):  # type: ignore[misc]
        pass

    # Both stored names are renamed to one live name each, but the reverse of the second is caught by the first.
    register_checkpoint_conversion_mapping(
        "Renamed",
        [WeightRenaming("attention.q", "self_attn.q_proj"), WeightRenaming("attn_q", "attention.q")],
        overwrite=True,
    )
    model = Renamed(llama().config)
    saved(llama(), tmp_path)

    def change(files: Files) -> None:
        for name, tensors in files.items():
            files[name] = {key.replace("self_attn.q_proj", "attention.q"): value for key, value in tensors.items()}

    edit(tmp_path, change)
    facts = facts_of(tmp_path, model)
    assert facts.plan is not None
    assert facts.plan.round_trips_checked == len(facts.plan.tensors)
    assert findings_of(facts, "D501") == []
    assert findings_of(facts, "D509") == []


def test_a_fraction_of_a_checkpoint(tmp_path: Path) -> None:
    """An unreadable file leaves open what it holds: no tensor is called missing."""
    saved(llama(), tmp_path, shards=2)
    min(tmp_path.glob("*.safetensors")).unlink()
    facts = facts_of(tmp_path)
    assert facts.plan is not None
    assert len(facts.plan.unread) == 1
    assert findings_of(facts, "D501") == []
    assert findings_of(facts, "D505") != []


def test_an_index_that_was_written_for_other_files(tmp_path: Path) -> None:
    import json

    saved(llama(), tmp_path, shards=2)
    assert findings_of(facts_of(tmp_path), "D516") == []
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["metadata"]["total_size"] += 64
    path.write_text(json.dumps(index))
    found = findings_of(facts_of(tmp_path), "D516")
    assert [item.subject for item in found] == [path.name]


@pytest.mark.parametrize("build", [mixtral, deepseek])
@pytest.mark.parametrize("live", [False, True])
def test_one_expert_of_another_shape(build: Any, live: bool, tmp_path: Path) -> None:
    model = build()
    saved(model, tmp_path)
    stored = read_files(tmp_path)["model.safetensors"]
    key = next(key for key in stored if re.search(r"experts\.2\.(w2|down_proj)\.", key))
    shapes: list[list[int]] = []

    def turned(files: Files) -> None:
        dtype, shape = files["model.safetensors"][key]
        shapes.append(shape)
        files["model.safetensors"][key] = (dtype, shape[::-1])

    edit(tmp_path, turned)
    found = findings_of(facts_of(tmp_path, model if live else None))
    assert [item.code for item in found] == ["D504"]
    assert found[0].subject.endswith("experts.down_proj")
    assert found[0].evidence["keys"] == (key,)
    assert f"{key} is {shapes[0][::-1]}; the other 3 of its like are {shapes[0]}" in found[0].message


@pytest.mark.parametrize("live", [False, True])
def test_the_weights_of_another_architecture(live: bool, tmp_path: Path) -> None:
    model = llama()
    saved(model, tmp_path)
    names = {"transformer.h.0.attn.c_attn.weight": ("F32", [16, 48]), "transformer.ln_f.weight": ("F32", [16])}
    edit(tmp_path, lambda files: files.update({"model.safetensors": dict(names)}))
    found = findings_of(facts_of(tmp_path, model if live else None))
    assert [(item.code, item.severity) for item in found] == [("D524", Severity.ERROR)]
    assert "0 of 21 tensors have a source, and 2 of 2 stored keys have no place" in found[0].message


def test_what_finds_no_place_in_another_architecture_is_no_head(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    names = {"transformer.h.0.attn.c_attn.weight": ("F32", [16, 48]), "transformer.ln_f.weight": ("F32", [16])}
    edit(tmp_path, lambda files: files.update({"model.safetensors": dict(names)}))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16}))
    facts = facts_of(tmp_path, llama())
    (d501,) = [item for item in CHECKPOINT_RULES if item.rule.code == "D501"]
    found = evaluate(facts, [d501]).findings
    assert {item.severity for item in found} == {Severity.ERROR}
    assert {item.subject for item in found} >= set(names)
    (told,) = findings_of(facts)
    assert told.code == "D524"
    assert "another architecture (GPT2LMHeadModel) than the model (LlamaForCausalLM)" in told.message
