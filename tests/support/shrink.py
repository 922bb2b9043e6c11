"""Small configurations of every Transformers model type: the default one, shrunk until it builds small."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

MAX_PARAMETERS = 20_000_000
ATTEMPTS = ((64, True), (16, True), (8, True), (16, False), (4, True), (4, False), (1, True), (1, False))
_LAYERS = re.compile(
    r"(num|n|encoder|decoder|hidden|vision|text|audio)?_?(hidden_)?(layers?|blocks?)$|^depth$|^n_layers?$|_layers$|depth$"
)
_SIZES = re.compile(
    r"(size|dim|dims|channels|d_model|d_ff|d_inner|d_kv|n_embd|n_inner|width|features|rank|ffn_dim|embedding|hidden)s?$"
)
_FIXED = re.compile(
    r"patch|kernel|stride|image_size|num_channels|in_channels|out_channels|vocab|window|block_size|group_size|chunk|pool|mel|"
    r"input_size|crop|sample|conv_dim|temporal|spatial|num_|max_|input_dim|out_features|channels_list|tubelet|axes_dim|mrope|rope|scal"
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)


def model_types() -> list[str]:
    """All types with a model class, sorted."""
    from transformers.models.auto import modeling_auto

    return sorted(modeling_auto.MODEL_MAPPING_NAMES)


def model_class(model_type: str, config: Any) -> Any:
    """A class with a language head where there is one, else the base class."""
    from transformers.models.auto import modeling_auto as auto

    for mapping in (auto.MODEL_FOR_CAUSAL_LM_MAPPING, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, auto.MODEL_MAPPING):
        with contextlib.suppress(KeyError):
            kind = mapping[type(config)]
            return kind[0] if isinstance(kind, (tuple, list)) else kind
    raise ValueError(f"{model_type} has no model class")


def _shrink(config: Any, factor: int, vocab: int, layers: bool = True) -> None:
    for name, value in list(vars(config).items()):
        if hasattr(value, "sub_configs") and hasattr(value, "to_dict"):
            _shrink(value, factor, vocab, layers)
        elif isinstance(value, bool) or name.startswith("_"):
            continue
        elif isinstance(value, int):
            _set(config, name, _smaller(name, value, factor, vocab, layers))
        elif isinstance(value, list) and value and all(type(item) is int for item in value):
            if layers and re.search(r"depths?$|num_layers|layers$", name):
                _set(config, name, [min(item, 1) for item in value])
            elif _SIZES.search(name) and not _FIXED.search(name):
                _set(config, name, [_smaller(name, item, factor, vocab, layers) for item in value])
    if layers:
        _shorten_lists(config)


def _smaller(name: str, value: int, factor: int, vocab: int, layers: bool) -> int:
    if name == "vocab_size" or name.endswith("_vocab_size"):
        return min(value, vocab)
    if re.search(r"token_(id|index)$|_index$", name):
        return min(value, vocab - 1)
    if re.search(r"max_(source_|target_)?positions?(_embeddings)?$|n_positions|n_ctx", name):
        return min(value, 256)
    if re.search(r"^(num_|n_)?(local_|routed_)?experts$|n_routed_experts|num_local_experts|moe_num_experts", name):
        return min(value, 8)
    if (
        layers
        and _LAYERS.search(name)
        and not re.search(r"full_attn|first_k|interval|every|head|cross|period|offset|idx", name)
    ):
        return min(value, 2)
    if _SIZES.search(name) and not _FIXED.search(name) and value >= 16 * factor:
        return value // factor
    return value


def _shorten_lists(config: Any) -> None:
    layers = getattr(config, "num_hidden_layers", None)
    if not isinstance(layers, int):
        return
    for name in ("layer_types", "layers_block_type", "mlp_layer_types", "block_types", "no_rope_layers"):
        value = getattr(config, name, None)
        if isinstance(value, list) and len(value) > layers:
            _set(config, name, value[-layers:] if name == "layer_types" else value[:layers])


def _set(config: Any, name: str, value: Any) -> None:
    with contextlib.suppress(Exception):
        setattr(config, name, value)


def small(model_type: str) -> tuple[Any, Any] | None:
    """The configuration and class of a small model of this type, None when no shrinking gives one that builds."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for factor, layers in ATTEMPTS:
        try:
            with quiet():
                config = CONFIG_MAPPING[model_type]()
                _shrink(config, factor, 1024, layers)
                config = type(config).from_dict(config.to_dict())
                kind = model_class(model_type, config)
                with torch.device("meta"):
                    model = kind(copy.deepcopy(config))
                if sum(parameter.numel() for parameter in model.parameters()) <= MAX_PARAMETERS:
                    return config, kind
        except Exception:
            continue
    return None
