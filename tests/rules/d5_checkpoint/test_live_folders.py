"""The D5 rules that read the values of folders, and the one about renamings in the settings."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from shardlint import LiveTarget, Target
from shardlint.collect import CollectOptions, collect
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.rule import Severity
from shardlint.testing import run_rule
from shardlint_rules.d5_checkpoint.cast_between_folders import CastBetweenFolders
from shardlint_rules.d5_checkpoint.folder_values_suspicious import FolderOptions, FolderValuesSuspicious
from shardlint_rules.d5_checkpoint.rename_without_effect import RenameWithoutEffect
from shardlint_rules.d5_checkpoint.shard_file_missing import ShardFileMissing

LAYERS = [f"layers.{number}" for number in range(3)]


def tensors():
    torch.manual_seed(0)
    found = {f"{layer}.up.weight": torch.randn(16, 16) for layer in LAYERS}
    found |= {f"{layer}.norm.weight": torch.ones(16) for layer in LAYERS}
    return found | {"embed.weight": torch.randn(20, 16), "mask": torch.ones(4, 4).tril().log()}


def written(folder, values):
    folder.mkdir(exist_ok=True)
    save_file({name: value.clone().contiguous() for name, value in values.items()}, folder / "model.safetensors")
    return folder


def evaluated(rule, checkpoint, **live):
    facts = collect(Target(checkpoint=checkpoint))
    found = evaluate(
        facts, [SelectedRule(rule=rule, explicit=True)], heavy=True, live=LiveTarget(checkpoint=checkpoint, **live)
    )
    return found.outcomes[0], found.findings


def looked_at(folder, rule=None, **changes):
    return evaluated(rule or FolderValuesSuspicious(), written(folder, tensors() | changes))


def cast(tmp_path, change, **live):
    reference = written(tmp_path / "reference", tensors())
    changed = {name: change(value) if name.endswith("up.weight") else value for name, value in tensors().items()}
    return evaluated(CastBetweenFolders(), written(tmp_path / "cast", changed), reference=reference, **live)


@pytest.mark.live("D526")
@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.int64])
def test_d526_integers_are_an_error(tmp_path, dtype):
    _, (finding,) = cast(tmp_path, lambda value: value.to(dtype))
    assert finding.severity is Severity.ERROR
    assert finding.subject == "layers.{0..2}.up.weight"


@pytest.mark.live("D526")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_d526_a_narrower_dtype_is_a_warning_with_counts(tmp_path, dtype):
    outcome, (finding,) = cast(tmp_path, lambda value: value.to(dtype))
    assert finding.severity is Severity.WARNING
    wanted = [tensors()[f"{layer}.up.weight"] for layer in LAYERS]
    errors = torch.stack([(value - value.to(dtype).float()).abs() for value in wanted])
    assert finding.evidence["changed"] == int((errors > 0).sum())
    assert finding.evidence["max_abs"] == pytest.approx(float(errors.max()))
    assert "3 of 8 tensors cast" in outcome.examined


@pytest.mark.live("D526")
def test_d526_a_tensor_that_only_zeros_are_left_of_is_an_error_even_if_the_cast_is_meant(tmp_path):
    small = tensors() | {"layers.0.up.weight": torch.full((16, 16), 1e-12)}
    reference = written(tmp_path / "reference", small)
    half = written(tmp_path / "half", {name: value.half() for name, value in small.items()})
    _, findings = evaluated(CastBetweenFolders(), half, reference=reference, allow_cast=("float16",))
    assert [(item.subject, item.severity) for item in findings] == [("layers.0.up.weight", Severity.ERROR)]
    assert findings[0].evidence["flushed_to_zero"] == 256


@pytest.mark.live("D526")
def test_d526_counts_what_is_out_of_range(tmp_path):
    large = tensors() | {"layers.0.up.weight": torch.full((16, 16), 1e6)}
    reference = written(tmp_path / "reference", large)
    half = written(tmp_path / "half", large | {"layers.0.up.weight": large["layers.0.up.weight"].half()})
    _, (finding,) = evaluated(CastBetweenFolders(), half, reference=reference)
    assert (finding.evidence["saturated"], finding.evidence["max_abs"]) == (256, None)


@pytest.mark.live("D526")
def test_d526_what_is_meant_or_lossless_or_the_same_is_no_warning(tmp_path):
    assert not cast(tmp_path, lambda value: value.bfloat16(), allow_cast=("bfloat16",))[1]
    outcome, findings = cast(tmp_path, lambda value: value)
    assert (findings, outcome.judged) == ((), 8)
    _, (finding,) = cast(tmp_path, lambda value: value.double())
    assert finding.severity is Severity.INFO
    assert evaluated(CastBetweenFolders(), tmp_path / "cast")[0].status is Status.NOT_EVALUATED


def test_d528_a_sound_folder_is_clean_with_its_evidence(tmp_path):
    outcome, findings = looked_at(tmp_path / "sound")
    assert not findings
    assert outcome.examined == "8 tensors, 1,152 elements read"


@pytest.mark.live("D528")
@pytest.mark.parametrize(
    ("value", "what", "severity"),
    [
        (torch.randn(16, 16).index_fill(0, torch.tensor([3]), float("nan")), "nonfinite", Severity.ERROR),
        (torch.randn(16, 16).index_fill(1, torch.tensor([3]), float("-inf")), "nonfinite", Severity.ERROR),
        (torch.randn(16, 16).half().index_fill(1, torch.tensor([3]), float("inf")), "nonfinite", Severity.ERROR),
        (torch.randn(16, 16).index_fill(0, torch.tensor([3]), 3e33), "absurd", Severity.ERROR),
        (torch.full((16, 16), 3e-42) * torch.arange(16), "subnormal", Severity.ERROR),
        (torch.zeros(16, 16), "constant", Severity.WARNING),
        (torch.full((16, 16), 0.02).bfloat16(), "constant", Severity.WARNING),
        (tensors()["layers.0.up.weight"].t(), "transposed", Severity.WARNING),
    ],
)
def test_d528_values_that_are_no_weights(tmp_path, value, what, severity):
    _, (finding,) = looked_at(tmp_path / "wrong", **{"layers.1.up.weight": value})
    assert (finding.subject, finding.evidence["what"], finding.severity) == ("layers.1.up.weight", what, severity)


@pytest.mark.live("D528")
def test_d528_the_place_of_the_first_nan_beyond_the_first_part_that_is_read(tmp_path):
    large = torch.zeros(600, 1024).normal_()
    large[599, 1023] = float("nan")
    _, (finding,) = looked_at(tmp_path / "wrong", embed=large)
    assert "1 of 614,400 elements is" in finding.message
    assert "[599, 1023]" in finding.message


@pytest.mark.live("D528")
def test_d528_a_folder_whose_matrices_were_erased_is_an_error(tmp_path):
    zeros = {f"{layer}.up.weight": torch.zeros(16, 16) for layer in LAYERS}
    _, (finding,) = looked_at(tmp_path / "wrong", **zeros)
    assert (finding.subject, finding.severity) == ("layers.{0..2}.up.weight", Severity.ERROR)


def test_d528_zeros_that_are_declared_are_left_out(tmp_path):
    rule = FolderValuesSuspicious(FolderOptions(constant=("layers.*.up.weight",)))
    assert not looked_at(tmp_path / "declared", rule, **{"layers.1.up.weight": torch.zeros(16, 16)})[1]


@pytest.mark.live("D528")
def test_d528_two_layers_that_are_one(tmp_path):
    _, (finding,) = looked_at(tmp_path / "wrong", **{"layers.2.up.weight": tensors()["layers.1.up.weight"]})
    assert finding.subject == "layers.2"
    assert finding.message == "all 2 tensors are those of layers.1, bit for bit"
    shared = {f"{layer}.table": torch.randn(4, 4, generator=torch.Generator().manual_seed(1)) for layer in LAYERS}
    assert not looked_at(tmp_path / "sound", **shared)[1]  # one table in layers that differ otherwise


def test_d528_leaves_a_comparison_to_others_and_says_what_it_cannot_read(tmp_path):
    folder = written(tmp_path / "sound", tensors())
    assert evaluated(FolderValuesSuspicious(), folder, reference=folder)[0].status is Status.NOT_EVALUATED
    assert evaluated(FolderValuesSuspicious(), folder, model=torch.nn.Linear(1, 1))[0].status is Status.NOT_EVALUATED
    early = evaluated(FolderValuesSuspicious(), folder, stop=lambda: True)[0]
    assert (early.unfinished, early.reason) == (True, "the run was interrupted")


@pytest.mark.live("D527")
def test_d527_what_renamings_do_to_the_keys_of_a_folder(tmp_path):
    folder = written(tmp_path / "folder", tensors())
    renames = ((r"^layers\.(\d+)", r"h.\1"), (r"^layers\.", "x."), (r"h\.\d", "h"), ("*.weight", "w"))
    facts = collect(Target(checkpoint=folder), CollectOptions(renames=renames))
    findings = {item.subject: item.message for item in run_rule(RenameWithoutEffect, facts).findings}
    assert r"^layers\.(\d+) -> h.\1" not in findings
    assert findings[r"^layers\. -> x."] == "it matches none of 8 stored keys"
    assert findings[r"h\.\d -> h"].startswith("afterwards 6 keys have a name that another one has: ")
    assert findings["*.weight -> w"].startswith("it cannot be used: ")


@pytest.mark.live("D505")
def test_d505_an_index_without_files_beside_a_single_file(tmp_path):
    folder = written(tmp_path / "folder", tensors())
    index = {"weight_map": dict.fromkeys(tensors(), "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (finding,) = run_rule(ShardFileMissing, collect(Target(checkpoint=folder))).findings
    assert (finding.severity, finding.subject) == (Severity.WARNING, "model.safetensors.index.json")
    index["weight_map"] = dict.fromkeys(tensors(), "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert not run_rule(ShardFileMissing, collect(Target(checkpoint=folder))).findings
