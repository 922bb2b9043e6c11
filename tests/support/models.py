"""Tiny real models, built on the CPU in milliseconds."""

import torch
from safetensors.torch import load_file, save_file

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def llama(**config):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, "tie_word_embeddings": False, **config}))


def mixtral(**config):
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**{**SIZES, "num_local_experts": 4, **config}))


def qwen3_moe(**config):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    sizes = {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**sizes, **config}))


def bert(**config):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(BertConfig(**{**SIZES, **config}))


def t5(**config):
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**{**sizes, **config}))


def gpt2(**config):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **config}))


def vit(**config):
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ViTForImageClassification(ViTConfig(**{**sizes, "image_size": 8, "patch_size": 4, **config}))


def mamba(**config):
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    return MambaForCausalLM(MambaConfig(**{**sizes, **config}))


FAMILIES = {
    "llama": llama,
    "llama-tied": lambda: llama(tie_word_embeddings=True),
    "mixtral": mixtral,
    "qwen3-moe": qwen3_moe,
    "bert": bert,
    "t5": t5,
    "gpt2": gpt2,
    "vit": vit,
    "mamba": mamba,
}


INPUTS = {"vit": lambda: {"pixel_values": torch.zeros(1, 3, 8, 8)}}
"""What a family's forward takes, where it is no `input_ids`."""


def run_forward(family, model):
    """One number from a forward of the model."""
    tokens = torch.ones(1, 4, dtype=torch.long)
    inputs = INPUTS[family]() if family in INPUTS else {"input_ids": tokens}
    if family == "t5":
        inputs["decoder_input_ids"] = tokens
    return model(**inputs)[0].float().sum()


def blocks_of(model):
    """The repeated blocks of the model: the members of its outermost module lists."""
    found = []
    for child in model.children():
        found += list(child) if isinstance(child, torch.nn.ModuleList) else blocks_of(child)
    return found


def saved(model, folder, shard_size="8KB"):
    """The folder after save_pretrained in several files."""
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def rewrite(folder, change):
    """Give `change` the tensors of every weight file of the folder as a dict, and write back what it left."""
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})
