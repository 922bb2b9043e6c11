"""D529 and V002 on adapters that PEFT wrote, beside the live model that carries them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import shardlint
from support.shrink import quiet

pytest.importorskip("peft")


def adapted(folder: Path, *, adapter: Path | None = None, **settings: Any) -> Any:
    """A small model from `folder` with the adapter of a folder, or with one whose values are all its own."""
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import LlamaForCausalLM

    with quiet():
        base = LlamaForCausalLM.from_pretrained(folder)
        if adapter is not None:
            return PeftModel.from_pretrained(base, adapter)
        model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], **settings))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                value.normal_()
    return model


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The folder of a base model, and that of an adapter for it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    with quiet():
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)).save_pretrained(tmp_path / "base")
        adapted(tmp_path / "base").save_pretrained(tmp_path / "adapter")
    return tmp_path / "base", tmp_path / "adapter"


def codes(model: Any, folder: Path) -> set[str]:
    report = shardlint.lint(model, checkpoint=folder, heavy=True, select=["D5", "V002"], config=False)
    return {finding.code for finding in report.findings if finding.severity is shardlint.Severity.ERROR}


def without_b(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in tensors.items() if "lora_B" not in key}


def without_a_layer(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in tensors.items() if "layers.1" not in key}


def empty(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: torch.zeros(0) for key in tensors}


def of_another_size(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value[:, :-1].contiguous() if "lora_A" in key else value for key, value in tensors.items()}


def one_more(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight": torch.ones(2, 16)}


@pytest.mark.live("D529")
@pytest.mark.parametrize("fault", [without_b, without_a_layer, empty, of_another_size, one_more])
def test_an_adapter_file_that_lacks_something(fault: Any, folders: tuple[Path, Path]) -> None:
    base, adapter = folders
    model = adapted(base, adapter=adapter)
    assert codes(model, adapter) == set()
    file = adapter / "adapter_model.safetensors"
    save_file(fault(load_file(file)), file, {"format": "pt"})
    report = shardlint.lint(model, checkpoint=adapter, select=["D529"], config=False)
    assert {finding.code for finding in report.findings} == {"D529"}


def test_another_adapter_than_the_one_that_the_folder_holds(folders: tuple[Path, Path]) -> None:
    base, adapter = folders
    model = adapted(base, adapter=adapter)
    with torch.no_grad():
        model.base_model.model.model.layers[1].self_attn.q_proj.lora_B.default.weight[3, 1] += 1
    assert codes(model, adapter) == {"V002"}


def test_a_module_that_is_saved_whole(folders: tuple[Path, Path], tmp_path: Path) -> None:
    base, _ = folders
    model = adapted(base, modules_to_save=["lm_head"])
    with quiet():
        model.save_pretrained(tmp_path / "whole")
    assert codes(model, tmp_path / "whole") == set()


@pytest.mark.parametrize("key", ["lm_head.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.weight"])
def test_a_gap_of_the_base_is_an_error_below_an_adapter(key: str, folders: tuple[Path, Path]) -> None:
    base, _ = folders
    assert codes(adapted(base), base) == set()
    file = base / "model.safetensors"
    save_file({name: value for name, value in load_file(file).items() if name != key}, file, {"format": "pt"})
    assert "D501" in codes(adapted(base), base)


@pytest.mark.parametrize("kind", ["VeraConfig", "OFTConfig", "AdaLoraConfig", "ShiraConfig", "RandLoraConfig"])
def test_what_other_kinds_share_compute_or_leave_out_is_no_fault(kind: str, folders: tuple[Path, Path]) -> None:
    import peft
    from transformers import LlamaForCausalLM

    settings: dict[str, Any] = {
        "OFTConfig": {"oft_block_size": 4},
        "AdaLoraConfig": {"total_step": 10},
    }.get(kind, {"r": 2})
    base, adapter = folders
    with quiet():
        config = getattr(peft, kind)(target_modules=["q_proj"], **settings)
        model = peft.get_peft_model(LlamaForCausalLM.from_pretrained(base), config)
        model.save_pretrained(adapter.parent / kind)
    assert codes(model, base) == set()
    assert codes(model, adapter.parent / kind) == set()
