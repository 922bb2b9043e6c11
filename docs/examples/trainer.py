"""Lint when a Transformers `Trainer` begins to train: `python trainer.py`."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from shardlint.integrations.transformers import ShardlintCallback


def build():
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    return LlamaForCausalLM(config)


def main():
    tokens = torch.randint(0, 64, (8, 16))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True
        )
        callback = ShardlintCallback()
        trainer = Trainer(model=build(), args=arguments, train_dataset=data, callbacks=[callback])
        callback.trainer = trainer  # to see the model below DDP as well
        trainer.train()
    print(f"trained, verdict {callback.report.verdict.value}")


if __name__ == "__main__":
    main()
