"""
Small configurations that were written by hand: for types that shrinking by rule makes contradictory, and for those
whose default configuration does not reach the conversions that the type has.
"""

from __future__ import annotations

from typing import Any

_TEXT = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "moe_intermediate_size": 32,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 32}
_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
_LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "index_head_dim": 16,
    "index_n_heads": 4,
}
_DINO = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 28, "use_swiglu_ffn": True}
_DOTS_LAYERS: dict[str, Any] = {"layer_types": ["indexed_attention", "sliding_attention"], "per_layer_config": {}}
_MIXED = {"mlp_layer_types": ["dense", "sparse"]}
_HYBRID = {
    **_TEXT,
    **_EXPERTS,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_NEMOTRON_AUDIO = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
_QWEN_VISION = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}

# By type: the name of the class and the settings of its configuration.
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "beam": (
        "BeamForCausalLM",
        {**_TEXT, **_EXPERTS, **_MIXED, "n_group": 2, "topk_group": 1, "layer_types": ["sliding_attention"] * 2},
    ),
    "depth_pro": (
        "DepthProModel",
        {
            "patch_size": 28,
            "fusion_hidden_size": 32,
            "scaled_images_feature_dims": [64, 64, 32],
            "intermediate_feature_dims": [32, 32],
            "intermediate_hook_ids": [1, 0],
            **{f"{part}_model_config": {"model_type": "dinov2", **_DINO} for part in ("image", "patch", "fov")},
        },
    ),
    "dinov2": ("Dinov2Model", _DINO),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", _DINO),
    "dots3_note_text": (
        "Dots3NoteForCausalLM",
        {**_TEXT, **_ROUTED, **_LATENT, **_MIXED, **_DOTS_LAYERS},
    ),
    "ernie4_5_vl_moe": (
        "Ernie4_5_VLMoeForConditionalGeneration",
        {
            "text_config": {
                **_TEXT,
                **_MIXED,
                "hidden_size": 256,
                "head_dim": 128,  # the sections of its rotary embedding want that
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "moe_intermediate_size": [32, 16],
                "moe_num_experts": 8,
                "moe_k": 2,
            },
            "vision_config": {"depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4},
        },
    ),
    "flint": ("FlintForCausalLM", {**_TEXT, **_EXPERTS, "mlp_only_layers": [0], "layer_types": ["full_attention"] * 2}),
    "glm_moe_dsa": (
        "GlmMoeDsaForCausalLM",
        {
            **_TEXT,
            **_ROUTED,
            **_LATENT,
            **_MIXED,
            "qk_head_dim": 16,
            "layer_types": ["indexed_attention"] * 2,
            "indexer_types": ["full"] * 2,
        },
    ),
    "molmo2": (
        "Molmo2ForConditionalGeneration",
        {
            "text_config": {**_TEXT, "additional_vocab_size": 8, "rope_scaling_layers": [0]},
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "head_dim": 16,
            },
            "adapter_config": {
                "hidden_size": 64,
                "intermediate_size": 96,
                "text_hidden_size": 64,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "head_dim": 16,
                "vision_feature_layer": [1, 0],
            },
        },
    ),
    "nemo_speechlm": (
        "Nemotron3_5TranscribeForConditionalGeneration",
        {
            "text_config": {
                **_TEXT,
                **_ROUTED,
                "model_type": "nemotron_h",
                "layers_block_type": ["linear_attention", "moe"],
                "mamba_num_heads": 4,
                "mamba_head_dim": 16,
                "n_groups": 2,
                "ssm_state_size": 16,
                "chunk_size": 16,
                "moe_shared_expert_intermediate_size": 32,
            },
            "audio_config": {
                "asr_config": _NEMOTRON_AUDIO,
                "diarization_config": {
                    "audio_config": _NEMOTRON_AUDIO,
                    "head_config": {"audio_hidden_size": 64, "hidden_size": 32},
                },
            },
            "word_timestamp_config": {**_NEMOTRON_AUDIO, "vocab_size": 32, "blank_token_id": 31},
        },
    ),
    "deepseek_ocr2": (
        "DeepseekOcr2ForConditionalGeneration",
        {
            "text_config": {**_TEXT, **_ROUTED, **_MIXED, "n_shared_experts": 1},
            "vision_config": {
                "encoder_config": {**_TEXT, "layer_types": ["full_attention"] * 2},
                "sam_config": {
                    "hidden_size": 64,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "mlp_dim": 96,
                    "image_size": 64,
                    "global_attn_indexes": [1],
                    "output_channels": 32,
                    "downsample_channels": [48, 64],
                },
            },
        },
    ),
    "dots3_note": (
        "Dots3NoteForConditionalGeneration",
        {
            "text_config": {**_TEXT, **_ROUTED, **_LATENT, **_MIXED, **_DOTS_LAYERS},
            "vision_config": {
                **_MIXED,
                "hidden_size": 64,
                "intermediate_size": 96,
                "moe_intermediate_size": 32,
                "num_attention_heads": 4,
                "num_hidden_layers": 2,
                "num_local_experts": 4,
                "per_layer_config": {},
                "adapter_in_dim": 64,
                "adapter_out_dim": 64,
            },
            "audio_config": {
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "head_dim": 16,
                "num_hidden_layers": 2,
                "downsample_hidden_size": 8,
                "conv_output_size": 128,
                "adapter_input_size": 64,
                "adapter_out_dim": 64,
            },
        },
    ),
    "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration", {"text_config": _HYBRID, "vision_config": _QWEN_VISION}),
    "qwen4_exp": (
        "Qwen4ExpForConditionalGeneration",
        {
            "text_config": {
                **_HYBRID,
                "layer_types": ["linear_attention", "indexed_attention"],
                "indexer_n_heads": 2,
                "indexer_kv_heads": 1,
                "indexer_head_dim": 16,
                "indexer_budget": 16,
                "indexer_compress_ratio": 4,
                "hc_lowrank": 8,
                "heads_per_ngram": 2,
                "ngram_vocab_size_base": 64,
                "make_ngram_vocab_size_divisible_by": 8,
                "split_ngram_parts": 2,
                "ple_embed_dim": 32,
            },
            "vision_config": _QWEN_VISION,
        },
    ),
    "qwen3_omni_moe": (
        "Qwen3OmniMoeForConditionalGeneration",
        {
            "thinker_config": {
                "text_config": {**_TEXT, **_EXPERTS},
                "vision_config": {**_QWEN_VISION, "deepstack_visual_indexes": [0, 1]},
                "audio_config": {
                    "d_model": 64,
                    "encoder_layers": 2,
                    "encoder_attention_heads": 4,
                    "encoder_ffn_dim": 96,
                    "downsample_hidden_size": 32,
                    "output_dim": 64,
                },
            },
            "talker_config": {
                "text_config": {
                    **_TEXT,
                    "num_local_experts": 8,
                    "num_experts_per_tok": 2,
                    "shared_expert_intermediate_size": 32,
                },
                "code_predictor_config": {**_TEXT, "layer_types": ["full_attention"] * 2, "num_code_groups": 4},
                "thinker_hidden_size": 64,
                "spatial_merge_size": 2,
                "num_code_groups": 4,
                "accept_hidden_layer": 1,
            },
            "code2wav_config": {
                "hidden_size": 64,
                "intermediate_size": 96,
                "decoder_dim": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "codebook_size": 64,
                "num_quantizers": 4,
            },
        },
    ),
}
