"""A traced step takes at most 15 % longer than an untraced one: a ratio of CPU times, measured in one run."""

import time

import pytest
import torch

import shardlint

LIMIT = 1.15
ROUNDS = 12


def cpu_seconds(call):
    started = time.process_time()
    call()
    return time.process_time() - started


@pytest.mark.benchmark
def test_a_step_of_a_tiny_llama_of_twelve_layers():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 12, "vocab_size": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 256, (2, 64))

    def step():
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(3):
            step()
        plain, traced = [], []
        for _ in range(ROUNDS):
            plain.append(cpu_seconds(step))
            with shardlint.trace(model, optimizer):
                traced.append(cpu_seconds(step))
    finally:
        torch.set_num_threads(threads)
    ratio = min(traced) / min(plain)
    print(f"a traced step takes {ratio:.3f} times an untraced one")
    assert ratio <= LIMIT
