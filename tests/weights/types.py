"""Small models of Transformers types: those of `plan.shrink`, and a second road for types that it cannot shrink."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch

from support import shrink
from support.shrink import model_class, quiet, small
from weights.written import WRITTEN

# Values for the fields of configurations that have them. They fit each other: 4 heads of 16, 8 experts in 2 groups.
VALUES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "ffn_hidden_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "moe_num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 16,
    "index_head_dim": 16,
    "index_n_heads": 4,
    "num_dense_layers": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 128,
    "block_auto_adjust_ff_dim": False,
    "zero_expert_num": 2,
    "moe_layers": [1],
    "max_window_layers": 2,
}
# Fields that are None by default, of types that need them.
MORE: dict[str, dict[str, Any]] = {
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 8, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
}
MAX_PARAMETERS = 60_000_000


def _given(kind: Any, default: Any) -> dict[str, Any]:
    given = {name: value for name, value in VALUES.items() if getattr(default, name, None) is not None}
    for name in getattr(kind, "sub_configs", {}):
        inner = getattr(default, name, None)
        if inner is not None and hasattr(inner, "to_dict"):
            given[name] = _given(type(inner), inner)
    return given


def candidates(model_type: str) -> Iterator[tuple[Any, Any]]:
    """Configurations and classes of small models; the first ones may build on meta and still not be usable."""
    for build in (_written, small, _from_values):
        with contextlib.suppress(Exception), quiet():
            found = build(model_type)
            if found is not None:
                yield found
    for factor in (8, 4, 2):
        with contextlib.suppress(Exception), quiet():
            config, kind = _shrunken(model_type, factor)
            yield config, kind


def _written(model_type: str) -> tuple[Any, Any] | None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in WRITTEN:
        return None
    name, settings = WRITTEN[model_type]
    return CONFIG_MAPPING[model_type](**copy.deepcopy(settings)), getattr(transformers, name)


def _from_values(model_type: str) -> tuple[Any, Any] | None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    return _if_small(model_type, kind(**_given(kind, kind()) | MORE.get(model_type, {})))


def _shrunken(model_type: str, factor: int) -> tuple[Any, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type]()
    shrink._shrink(config, factor, 1024)
    found = _if_small(model_type, type(config).from_dict(config.to_dict()))
    assert found is not None
    return found


def _if_small(model_type: str, config: Any) -> tuple[Any, Any] | None:
    model = model_class(model_type, config)
    with torch.device("meta"):
        built = model(copy.deepcopy(config))
    if sum(parameter.numel() for parameter in built.parameters()) <= MAX_PARAMETERS:
        return config, model
    return None
