"""Every kind of adapter of PEFT, around a small language model, trained for one step."""

import functools

import torch
from peft import (
    AdaLoraConfig,
    AdamssConfig,
    AdaptionPromptConfig,
    BOFTConfig,
    C3AConfig,
    DeloraConfig,
    FourierFTConfig,
    GraloraConfig,
    HRAConfig,
    IA3Config,
    LNTuningConfig,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    MissConfig,
    OFTConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    RandLoraConfig,
    RoadConfig,
    ShiraConfig,
    TrainableTokensConfig,
    VBLoRAConfig,
    VeraConfig,
    WaveFTConfig,
    get_peft_model,
    inject_adapter_in_model,
    prepare_model_for_kbit_training,
)
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from support.everyday import Setups, adamw, stepped

everyday = Setups()
TOKENS = torch.arange(2, 18).reshape(2, 8)
TASK = {"task_type": "CAUSAL_LM"}


def base(kind=LlamaForCausalLM, **options):
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=0,
        **options,
    )
    return kind(config)


def trained(config, model=None, **options):
    model = get_peft_model(base() if model is None else model, config)
    return stepped(model, adamw(model), input_ids=TOKENS, labels=options.get("labels", TOKENS))


CONFIGS = {
    "lora": lambda: LoraConfig(r=4, **TASK),
    "lora_of_every_linear": lambda: LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1, **TASK),
    "lora_rank_stabilised": lambda: LoraConfig(r=4, use_rslora=True, **TASK),
    "lora_with_pissa": lambda: LoraConfig(r=4, init_lora_weights="pissa", **TASK),
    "lora_with_bias": lambda: LoraConfig(r=4, bias="lora_only", lora_bias=False, **TASK),
    "lora_weight_decomposed": lambda: LoraConfig(r=4, use_dora=True, **TASK),
    "lora_with_saved_head": lambda: LoraConfig(r=4, modules_to_save=["lm_head"], **TASK),
    "lora_with_saved_embedding": lambda: LoraConfig(r=4, modules_to_save=["embed_tokens", "lm_head"], **TASK),
    "lora_on_the_embedding": lambda: LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"], **TASK),
    "lora_of_some_layers": lambda: LoraConfig(
        r=4, target_modules=["q_proj"], layers_to_transform=[1], layers_pattern="layers", **TASK
    ),
    "lora_with_rank_pattern": lambda: LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], rank_pattern={"q_proj": 8}, alpha_pattern={"v_proj": 2}, **TASK
    ),
    "lora_with_trained_tokens": lambda: LoraConfig(
        r=4, target_modules=["q_proj"], trainable_token_indices=[3, 4], **TASK
    ),
    "lora_by_expression": lambda: LoraConfig(r=4, target_modules=r".*layers\.\d+\.mlp\.(up|down)_proj", **TASK),
    "adaptive_lora": lambda: AdaLoraConfig(r=4, init_r=6, total_step=100, tinit=5, tfinal=10, **TASK),
    "ia3": lambda: IA3Config(**TASK),
    "prompt_tuning": lambda: PromptTuningConfig(num_virtual_tokens=3, **TASK),
    "prefix_tuning": lambda: PrefixTuningConfig(num_virtual_tokens=3, **TASK),
    "prefix_with_projection": lambda: PrefixTuningConfig(num_virtual_tokens=3, prefix_projection=True, **TASK),
    "p_tuning": lambda: PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=16, **TASK),
    "adaption_prompt": lambda: AdaptionPromptConfig(adapter_len=2, adapter_layers=1, **TASK),
    "loha": lambda: LoHaConfig(r=4, target_modules=["q_proj", "v_proj"], **TASK),
    "lokr": lambda: LoKrConfig(r=4, target_modules=["q_proj", "v_proj"], **TASK),
    "lokr_whole_blocks": lambda: LoKrConfig(r=64, target_modules=["q_proj"], **TASK),
    "oft": lambda: OFTConfig(oft_block_size=4, target_modules=["q_proj", "v_proj"], **TASK),
    "boft": lambda: BOFTConfig(boft_block_size=4, target_modules=["q_proj", "v_proj"], **TASK),
    "hra": lambda: HRAConfig(r=4, target_modules=["q_proj", "v_proj"], **TASK),
    "fourier": lambda: FourierFTConfig(n_frequency=20, target_modules=["q_proj", "v_proj"], **TASK),
    "wavelets": lambda: WaveFTConfig(n_frequency=20, target_modules=["q_proj", "v_proj"], **TASK),
    "norms": lambda: LNTuningConfig(target_modules=["input_layernorm", "post_attention_layernorm"], **TASK),
    "vera": lambda: VeraConfig(r=4, target_modules=["q_proj", "v_proj"], **TASK),
    "vector_bank": lambda: VBLoRAConfig(
        r=4, num_vectors=8, vector_length=8, target_modules=["q_proj", "v_proj"], topk=2, **TASK
    ),
    "random_bases": lambda: RandLoraConfig(r=4, target_modules=["q_proj", "v_proj"], **TASK),
    "miss": lambda: MissConfig(r=4, target_modules=["q_proj", "v_proj"], **TASK),
    "road": lambda: RoadConfig(variant="road_1", group_size=4, target_modules=["q_proj", "v_proj"], **TASK),
    "trained_tokens": lambda: TrainableTokensConfig(token_indices=[3, 4], target_modules=["embed_tokens"], **TASK),
    "sparse_high_rank": lambda: ShiraConfig(r=4, target_modules=["q_proj", "v_proj"], **TASK),
    "circulant": lambda: C3AConfig(block_size=16, target_modules=["q_proj", "v_proj"], **TASK),
    "bounded_lora": lambda: DeloraConfig(r=4, target_modules=["q_proj", "v_proj"], **TASK),
    "granular_lora": lambda: GraloraConfig(r=4, gralora_k=2, target_modules=["q_proj", "v_proj"], **TASK),
    "subspaces": lambda: AdamssConfig(r=4, num_subspaces=2, target_modules=["q_proj", "v_proj"], **TASK),
}


def _set_up(name, config):
    function = functools.partial(lambda make: trained(make()), config)
    function.__name__ = name
    return function


for _name, _config in CONFIGS.items():
    everyday(_set_up(_name, _config))


@everyday
def classifier_with_lora_and_its_own_head():
    model = get_peft_model(base(LlamaForSequenceClassification, num_labels=3), LoraConfig(r=4, task_type="SEQ_CLS"))
    return stepped(model, adamw(model), input_ids=TOKENS, labels=torch.tensor([0, 2]))


@everyday
def tied_model_with_lora():
    return trained(LoraConfig(r=4, target_modules=["q_proj", "o_proj"], **TASK), base(tie_word_embeddings=True))


@everyday
def optimizer_over_every_parameter():
    model = get_peft_model(base(), LoraConfig(r=4, **TASK))
    return stepped(model, torch.optim.AdamW(model.parameters(), lr=1e-3), input_ids=TOKENS, labels=TOKENS)


@everyday
def two_adapters_one_in_use():
    model = get_peft_model(base(), LoraConfig(r=4, **TASK))
    model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"], **TASK))
    model.set_adapter("second")
    return stepped(model, adamw(model), input_ids=TOKENS, labels=TOKENS)


@everyday
def adapter_under_gradient_checkpointing():
    model = get_peft_model(base(), LoraConfig(r=4, **TASK))
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return stepped(model.train(), adamw(model), input_ids=TOKENS, labels=TOKENS)


@everyday
def adapter_over_four_bits():
    import bitsandbytes as bnb

    model = base()
    for layer in model.model.layers:
        for owner in (layer.self_attn, layer.mlp):
            for name, child in list(owner.named_children()):
                if isinstance(child, torch.nn.Linear):
                    quantised = bnb.nn.Linear4bit(
                        child.in_features,
                        child.out_features,
                        bias=False,
                        quant_type="nf4",
                        compute_dtype=torch.float32,
                    )
                    quantised.load_state_dict(child.state_dict())
                    setattr(owner, name, quantised.to("cpu"))
    model.is_loaded_in_4bit = True
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return trained(LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **TASK), model)


@everyday
def adapter_injected_without_a_wrapper():
    model = inject_adapter_in_model(LoraConfig(r=4, target_modules=["q_proj", "v_proj"]), base())
    return stepped(model, adamw(model), input_ids=TOKENS, labels=TOKENS)


@everyday
def mixed_adapters():
    model = get_peft_model(base(), LoHaConfig(r=4, target_modules=["q_proj"], **TASK), mixed=True)
    model.add_adapter("other", LoraConfig(r=2, target_modules=["v_proj"], **TASK))
    model.set_adapter(["default", "other"])
    return stepped(model, adamw(model), input_ids=TOKENS, labels=TOKENS)


@everyday
def merged_after_training():
    return trained(LoraConfig(r=4, **TASK)).model.merge_and_unload()


@everyday
def saved_and_loaded_to_train_on():
    import tempfile

    from peft import PeftModel

    with tempfile.TemporaryDirectory() as folder:
        trained(LoraConfig(r=4, target_modules=["q_proj"], **TASK)).model.save_pretrained(folder)
        model = PeftModel.from_pretrained(base(), folder, is_trainable=True)
    return stepped(model, adamw(model), input_ids=TOKENS, labels=TOKENS)


test_has_no_false_alarm = everyday.test()
