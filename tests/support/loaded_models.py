"""Tiny models saved and loaded, for the tests of verification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from shardlint.weights import RowKind, verify
from shardlint.weights.compare.bits import bits_of
from support.shrink import quiet


def mixtral_config(**changes: Any) -> Any:
    from transformers import MixtralConfig

    settings = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_local_experts": 4,
    }
    return MixtralConfig(**settings | changes)


def tiny_llama(**changes: Any) -> tuple[Any, Any]:
    """A configuration and its class; every projection has at least 128 columns, as formats with groups want it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    return LlamaConfig(**settings | {"num_attention_heads": 4, "num_key_value_heads": 4} | changes), LlamaForCausalLM


def saved(folder: Path, config: Any, kind: Any, *, dtype: torch.dtype = torch.float32) -> Path:
    """A checkpoint of a model with random values everywhere, also where initialisation gives zeros or ones."""
    torch.manual_seed(1)
    with quiet():
        model = kind(config).to(dtype)
        with torch.no_grad():
            for tensor in {id(p): p for p in [*model.parameters(), *model.buffers()]}.values():
                if tensor.is_floating_point():
                    tensor.copy_(torch.randn(tensor.shape) * 0.05 + 0.01)
        model.save_pretrained(folder)
    return folder


def loaded(folder: Path, kind: Any, **settings: Any) -> Any:
    with quiet():
        return kind.from_pretrained(folder, **settings)


def assert_bit_found(model: Any, folder: Path, tensor: torch.Tensor, index: tuple[int, ...], name: str) -> None:
    """One bit of a live tensor that is kept as stored, flipped and put back, is found under its name at that index."""
    bits_of(tensor)[index] ^= 1
    (row,) = (row for row in verify(model, folder).of_kind(RowKind.LIVE) if row.load_mismatches)
    assert (row.name, row.load_mismatches) == (name, 1)
    assert row.first
    assert (row.first.live_index, row.first.checkpoint_index) == (index, index)
    bits_of(tensor)[index] ^= 1
