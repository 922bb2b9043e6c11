"""Small models of Transformers, trained for one step as their users train them."""

import tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM

import shardlint
from support.everyday import Setups, adamw, stepped

everyday = Setups()
TOKENS = torch.arange(4, 20).reshape(2, 8)
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 32,
}
OLD = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}


def llama(**options):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **options))


def trained(model, **inputs):
    return stepped(model.train(), adamw(model), **(inputs or {"input_ids": TOKENS, "labels": TOKENS}))


@everyday
def llama_for_causal_language():
    return trained(llama())


@everyday
def llama_tied():
    return trained(llama(tie_word_embeddings=True))


@everyday
def llama_with_scaled_rope():
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return trained(llama(rope_parameters={**scaling, "original_max_position_embeddings": 16, "rope_theta": 1e4}))


@everyday(says=("D404",), because="casting the whole model rounds the frequencies of its rotary embedding")
def llama_in_bfloat16_with_large_rate():
    model = llama().to(torch.bfloat16)
    return stepped(model, torch.optim.SGD(model.parameters(), lr=0.1), input_ids=TOKENS, labels=TOKENS)


@everyday
def llama_checkpointed():
    model = llama()
    model.gradient_checkpointing_enable()
    return trained(model)


@everyday
def llama_with_resized_embedding():
    model = llama()
    model.resize_token_embeddings(80, pad_to_multiple_of=16)
    return trained(model)


@everyday
def llama_with_frozen_layers():
    model = llama()
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    return trained(model)


@everyday
def llama_saved_and_loaded():
    with tempfile.TemporaryDirectory() as folder:
        llama().save_pretrained(folder)
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        optimizer = adamw(model)
        target = stepped(model, optimizer, input_ids=TOKENS, labels=TOKENS)
    return shardlint.Target(model=model, optimizer=optimizer, trace=target.trace, load_info=report)


@everyday
def llama_classifier():
    config = transformers.LlamaConfig(**SMALL, num_labels=3)
    return trained(transformers.LlamaForSequenceClassification(config), input_ids=TOKENS, labels=torch.tensor([0, 2]))


@everyday
def gpt2_tied():
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1)
    return trained(transformers.GPT2LMHeadModel(config))


@everyday
def bert_for_masked_language():
    return trained(transformers.BertForMaskedLM(transformers.BertConfig(**OLD)))


@everyday
def bert_classifier():
    config = transformers.BertConfig(**OLD, num_labels=3)
    return trained(transformers.BertForSequenceClassification(config), input_ids=TOKENS, labels=torch.tensor([0, 2]))


@everyday
def bert_tagger_without_pooler():
    config = transformers.BertConfig(**OLD, num_labels=3)
    return trained(transformers.BertForTokenClassification(config), input_ids=TOKENS, labels=TOKENS % 3)


@everyday
def roberta_for_masked_language():
    return trained(transformers.RobertaForMaskedLM(transformers.RobertaConfig(**OLD)))


@everyday
def t5_seq2seq():
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return trained(transformers.T5ForConditionalGeneration(config))


@everyday
def bart_seq2seq():
    config = transformers.BartConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    return trained(transformers.BartForConditionalGeneration(config))


@everyday
def vit_classifier():
    config = transformers.ViTConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=8
    )
    images = torch.randn(2, 3, 16, 16)
    return trained(transformers.ViTForImageClassification(config), pixel_values=images, labels=torch.tensor([0, 1]))


def clip():
    config = transformers.CLIPConfig(
        text_config={**OLD, "projection_dim": 16},
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "image_size": 16, "patch_size": 8, "projection_dim": 16,
        },
        projection_dim=16,
    )  # fmt: skip
    return transformers.CLIPModel(config)


@everyday
def clip_contrastive():
    return trained(clip(), input_ids=TOKENS, pixel_values=torch.randn(2, 3, 16, 16), return_loss=True)


@everyday
def whisper_transcribes():
    config = transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=16,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    features = torch.randn(2, 8, 32)
    return trained(transformers.WhisperForConditionalGeneration(config), input_features=features, labels=TOKENS)


@everyday
def mixtral_with_idle_experts():
    config = transformers.MixtralConfig(**SMALL, num_local_experts=4, output_router_logits=True)
    return trained(transformers.MixtralForCausalLM(config))


@everyday
def qwen_mixture_with_shared_expert():
    config = transformers.Qwen2MoeConfig(
        **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16
    )
    return trained(transformers.Qwen2MoeForCausalLM(config))


@everyday
def mamba_state_space():
    config = transformers.MambaConfig(
        vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return trained(transformers.MambaForCausalLM(config))


@everyday
def gemma_with_soft_caps():
    return trained(transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SMALL, head_dim=8)))


@everyday
def phi_with_partial_rotary():
    return trained(transformers.PhiForCausalLM(transformers.PhiConfig(**OLD)))


@everyday
def bloom_with_alibi():
    config = transformers.BloomConfig(
        vocab_size=64, hidden_size=32, n_layer=2, n_head=4, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    return trained(transformers.BloomForCausalLM(config))


def llava():
    config = transformers.LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "image_size": 16, "patch_size": 8, "projection_dim": 16,
        },
        text_config={"model_type": "llama", **SMALL},
        image_token_id=60,
        vision_feature_layer=-1,
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config)


@everyday
def vision_and_language_on_text_alone():
    return trained(llava())


@everyday
def vision_and_language_with_images():
    tokens = TOKENS.clone()
    tokens[:, 1:5] = 60
    model = llava()
    model.model.vision_tower.requires_grad_(False)
    return trained(model, input_ids=tokens, labels=tokens, pixel_values=torch.randn(2, 3, 16, 16))


@everyday
def qwen_vision_on_text_alone():
    config = transformers.Qwen2VLConfig(
        text_config={**SMALL, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4},
        image_token_id=60, video_token_id=61, vision_start_token_id=62, vision_end_token_id=63,
    )  # fmt: skip
    return trained(transformers.Qwen2VLForConditionalGeneration(config))


@everyday
def sentence_encoder_with_mean_pooling():
    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = transformers.BertModel(transformers.BertConfig(**OLD), add_pooling_layer=False)

        def forward(self, tokens):
            return self.bert(tokens).last_hidden_state.mean(1)

    model = Encoder()
    return stepped(model, adamw(model), TOKENS)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"input_ids": TOKENS[index], "labels": TOKENS[index]}


@everyday
def trainer_with_its_own_optimizer():
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=1, report_to=[], use_cpu=True, warmup_steps=1, save_strategy="no", disable_tqdm=True
        )
        trainer = transformers.Trainer(llama(), arguments, train_dataset=Tokens())
        trainer.create_optimizer_and_scheduler(2)
        with shardlint.trace(trainer.model, trainer.optimizer) as trace:
            trainer.train()
    return shardlint.Target(model=trainer.model, optimizer=trainer.optimizer, trace=trace)


@everyday
def accelerated_by_prepare():
    from accelerate import Accelerator

    model = llama()
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, adamw(model))
    with shardlint.trace(model, optimizer) as trace:
        accelerator.backward(model(input_ids=TOKENS, labels=TOKENS).loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def preference_tuning_with_reference():
    import copy

    model = llama()
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = adamw(model)
    with shardlint.trace(model, optimizer) as trace:
        chosen, rejected = model(input_ids=TOKENS[:1]).logits, model(input_ids=TOKENS[1:]).logits
        with torch.no_grad():
            shift = reference(input_ids=TOKENS[:1]).logits.mean()
        torch.nn.functional.softplus(rejected.mean() - chosen.mean() + shift).backward()
        optimizer.step()
        optimizer.zero_grad()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


test_has_no_false_alarm = everyday.test()
