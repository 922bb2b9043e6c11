"""What a release lacks, or what goes wrong between libraries, is not evaluated and blames no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import initialization

from shardlint import lint
from shardlint.loading.plan import ConfigRefusedError, PlanUnknownError
from support.linting import plan_of
from support.tiny import llama, mixtral, saved

BUILDER = "transformers.LlamaForCausalLM.__init__"


def lacking(*_: Any, **__: Any) -> None:
    raise AttributeError("module 'transformers.somewhere' has no attribute 'helper'")


def misfit(*_: Any, **__: Any) -> None:
    lacking.__get__(1, 2, 3)  # type: ignore[call-overload]  # a TypeError that no statement raises


def on_meta(*_: Any, **__: Any) -> None:
    raise RuntimeError("Tensor.item() cannot be called on meta tensors")


def unpacked(*_: Any, **__: Any) -> None:
    (_,) = (1, 2)


@pytest.mark.parametrize("wrong", [lacking, misfit, on_meta, unpacked])
def test_what_goes_wrong_between_libraries_is_not_evaluated(
    wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(llama(), tmp_path)
    monkeypatch.setattr(BUILDER, wrong)
    with pytest.raises(PlanUnknownError, match=r"Transformers \d.*test_releases\.py:\d+") as caught:
        plan_of(tmp_path)
    assert not isinstance(caught.value, ConfigRefusedError)
    report = lint(checkpoint=tmp_path)
    assert "D523" not in {item.code for item in report.findings}
    assert "the coverage of the checkpoint is unknown" in str(report)


def test_what_the_library_refuses_by_a_statement_is_its_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise ValueError("`hidden_size` must be divisible by `num_heads`")

    saved(llama(), tmp_path)
    monkeypatch.setattr(BUILDER, refuses)
    with pytest.raises(ConfigRefusedError, match="must be divisible"):
        plan_of(tmp_path)


@pytest.mark.parametrize("name", ["meta_device_safe_creation_ops", "no_tie_weights"])
def test_a_helper_that_a_release_lacks_is_done_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(mixtral(), tmp_path)
    monkeypatch.delattr(initialization, name)
    assert all(item.status in ("loaded", "tied") for item in plan_of(tmp_path).tensors)


def test_without_a_helper_the_reason_names_the_release_that_brought_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(llama(), tmp_path)
    monkeypatch.delattr(initialization, "meta_device_safe_creation_ops")
    monkeypatch.setattr(BUILDER, on_meta)
    with pytest.raises(PlanUnknownError, match=r"lacks .*meta_device_safe_creation_ops, .* from 5\.5\.4 on"):
        plan_of(tmp_path)
