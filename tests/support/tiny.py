"""Tiny models of a few families, built in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from support.shrink import quiet

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def llama(**more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL | more))


def mixtral(**more: Any) -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2} | more))


def deepseek(**more: Any) -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    small = SMALL | {
        "moe_intermediate_size": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 4,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
    }
    torch.manual_seed(0)
    return DeepseekV3ForCausalLM(DeepseekV3Config(**small | more))


def saved(model: Any, folder: Path, *, shards: int = 1) -> Path:
    """The folder after `save_pretrained`, in about `shards` files."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    with quiet():
        model.save_pretrained(folder, max_shard_size=size // shards + 4096)
    return folder
