"""What lies in a checkpoint folder beside what is read: variants, parts, subfolders, and parents of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shardlint import Target
from shardlint.checkpoint.folder import CheckpointError, collect_checkpoint
from shardlint.collect import collect
from shardlint.collect.targets import TargetError, resolve
from shardlint.facts import Facts
from support.linting import findings_of
from support.safetensors_files import write_file, write_sharded

A, B = {"a": ("F32", [2])}, {"a": ("F16", [2])}
NAMES = [
    ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.fp16.safetensors"),
    ("unet.safetensors", "unet.bf16.safetensors"),
    ("weights.safetensors", "weights.non_ema.safetensors"),
    ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.mine.safetensors"),
    ("net.fp32.safetensors", "net.fp16.safetensors"),
]


@pytest.mark.live("D530")
def test_a_live_model_beside_a_variant(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"part": torch.nn.Linear(2, 2)})
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    save_file({name: value.half() for name, value in model.state_dict().items()}, tmp_path / "net.fp16.safetensors")
    facts = collect(Target(model=model, checkpoint=tmp_path))
    assert [found.subject for found in findings_of(facts, "D530")] == ["net.fp16.safetensors"]
    assert findings_of(facts, "D501", "D507") == []


@pytest.mark.parametrize(("taken", "other"), NAMES)
def test_a_variant_is_set_aside_and_named(tmp_path: Path, taken: str, other: str) -> None:
    write_file(tmp_path / taken, A)
    write_file(tmp_path / other, B)
    facts = collect_checkpoint(tmp_path)
    assert [(entry.file, entry.dtype) for entry in facts.entries] == [(taken, "F32")]
    assert facts.repeated_keys == ()
    assert [(item.name, item.kind) for item in facts.aside] == [(other, "variant")]
    assert findings_of(Facts(checkpoint=facts), "D507") == []
    (named,) = findings_of(Facts(checkpoint=facts), "D530")
    assert named.subject == other
    assert collect_checkpoint(tmp_path / other).entries[0].dtype == "F16"


def test_sharded_variants_do_not_mix(tmp_path: Path) -> None:
    stem = "diffusion_pytorch_model"
    write_sharded(tmp_path, {f"{stem}-0000{n}-of-00002.safetensors": {f"k{n}": ("F32", [n])} for n in (1, 2)})
    (tmp_path / "model.safetensors.index.json").rename(tmp_path / f"{stem}.safetensors.index.json")
    names = [f"{stem}.fp16-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for number, name in enumerate(names, 1):
        write_file(tmp_path / name, {f"k{number}": ("F16", [number])})
    index = f"{stem}.safetensors.index.fp16.json"
    (tmp_path / index).write_text(json.dumps({"weight_map": {"k1": names[0], "k2": names[1]}}))
    facts = collect_checkpoint(tmp_path)
    assert {entry.dtype for entry in facts.entries} == {"F32"}
    assert {item.name for item in facts.aside} == {*names, index}
    assert {entry.dtype for entry in collect_checkpoint(tmp_path / index).entries} == {"F16"}


@pytest.mark.parametrize("other", ["vision.safetensors", "model2.safetensors", "layers.attention.safetensors"])
def test_other_files_are_no_variants(tmp_path: Path, other: str) -> None:
    write_file(tmp_path / "layers.safetensors", A)
    write_file(tmp_path / other, {"b": ("F32", [1])})
    facts = collect_checkpoint(tmp_path)
    assert facts.aside == ()
    assert len(facts.entries) == 2


def test_parts_that_a_folder_names_are_not_passed_over(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", A)
    write_file(tmp_path / "2_Dense" / "model.safetensors", A)
    write_file(tmp_path / "tower" / "model.safetensors", A)
    (tmp_path / "1_Pooling").mkdir()
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    facts = collect_checkpoint(tmp_path)
    assert [(item.name, item.kind) for item in facts.aside] == [("2_Dense", "part"), ("tower", "subfolder")]
    severities = {found.subject: found.severity.value for found in findings_of(Facts(checkpoint=facts), "D530")}
    assert severities == {"2_Dense": "warning", "tower": "info"}


@pytest.mark.parametrize("content", ["", "[", "[1, null]", '{"_class_name": 3}', '[{"path": 5}]'])
def test_a_broken_list_of_parts_is_no_list(tmp_path: Path, content: str) -> None:
    write_file(tmp_path / "model.safetensors", A)
    (tmp_path / "modules.json").write_text(content)
    assert collect_checkpoint(tmp_path).aside == ()


def test_a_parent_folder_says_which_child_is_meant(tmp_path: Path) -> None:
    for number in (500, 1500):
        write_file(tmp_path / f"checkpoint-{number}" / "model.safetensors", A)
    (tmp_path / "trainer_state.json").write_text("{}")
    for asked in (lambda: collect_checkpoint(tmp_path), lambda: resolve(str(tmp_path))):
        with pytest.raises((CheckpointError, TargetError), match=r"did you mean '.*checkpoint-1500', '.*-500'\?"):
            asked()


def test_a_pipeline_names_its_components(tmp_path: Path) -> None:
    for name in ("unet", "vae"):
        write_file(tmp_path / name / "diffusion_pytorch_model.safetensors", A)
    (tmp_path / "model_index.json").write_text('{"_class_name": "P", "unet": ["diffusers", "U"]}')
    with pytest.raises(CheckpointError, match=r"diffusers pipeline.*unet'.*vae'"):
        collect_checkpoint(tmp_path)
