"""
The names that wrappers and adapters add to those of a model. Public; no torch.

Live names are walked without the segments of wrappers, because the *type* of the parent tells them apart
(`shardlint.introspect.walk`). Names that others wrote (stored keys, states of an optimizer, records of a load) can be
judged by their text alone: that is what this module is for.
"""

from __future__ import annotations

from ..introspect.wrappers import WRAPPER_TYPES

DATA_PARALLEL_SEGMENT = "module"
"""The segment of data parallelism; many a real child has that name too, so it is never removed by the text alone."""

WRAPPER_SEGMENTS = frozenset(
    {kind.segment for kind in WRAPPER_TYPES if kind.segment != DATA_PARALLEL_SEGMENT}
    | {"_forward_module", "_wrapped_module", "_swap_wrapped_module"}
)
"""The segments that no module of a model's own bears."""

SAVED_PREFIXES = ("model.", f"{DATA_PARALLEL_SEGMENT}.", "app.model.", "state_dict.")
"""What training loops put before all names of a model when they save it."""

PEFT_PREFIXES = ("base_model.model.", "base_model.")
"""What PEFT puts before the names of the model that it wraps, the longest first."""

ORIGINAL_SEGMENTS = frozenset({"base_layer", "original_module", "token_adapter"})
"""The segments below which PEFT keeps what a module was before."""

# fmt: off
ADAPTER_STARTS = (
    "adamss_", "adaption_", "beft_", "boft_", "c3a_", "deft_", "delora_", "fourierft_", "frod_", "glora_",
    "gralora_", "hada_", "hira_", "hra_", "ia3_", "lily_", "ln_tuning_", "lokr_", "lora_", "miss_", "oft_",
    "osf_", "peanut_", "poly_lora_", "poly_router", "psoft_", "pvera_", "randlora_", "ranknum", "road_alpha",
    "road_theta", "shira_", "supertuning_", "tinylora_", "trainable_tokens_", "unilora_", "vblora_", "vera_",
    "waveft_",
)
# fmt: on
"""How the segments begin that hold the tensors of an adapter beside the layer that it adapts."""

SAVED_COPY = "modules_to_save"
"""The segment below which PEFT keeps the trained copy of a module that is saved whole."""

_LOOSE_STARTS = ("prompt_", "adapter")  # real modules bear such names too


def without_wrappers(name: str) -> str:
    """The name without the segments of wrappers that no module of a model's own bears."""
    return ".".join(part for part in name.split(".") if part not in WRAPPER_SEGMENTS)


def without_adapter(name: str) -> str:
    """The name that a tensor has in the base model, without what PEFT puts around it."""
    prefix = next((prefix for prefix in PEFT_PREFIXES if name.startswith(prefix)), "")
    return ".".join(part for part in name.removeprefix(prefix).split(".") if part not in ORIGINAL_SEGMENTS)


def base_name(name: str) -> str | None:
    """The name in the base model of a tensor of an adapted model; None for a tensor of the adapter's own."""
    return None if any(map(_is_adapter_segment, name.split("."))) else without_adapter(name)


def may_be_adapters(name: str) -> bool:
    """Whether a tensor of an adapted model may be the adapter's own, so that no base checkpoint holds it."""
    return any(_is_adapter_segment(part) or part.startswith(_LOOSE_STARTS) for part in name.split("."))


def adapted_module(key: str) -> str | None:
    """The module, by its name in the base model, that a key of an adapter changes; None when none can be told."""
    parts = key.removeprefix(PEFT_PREFIXES[0]).split(".")
    own = (at for at, part in enumerate(parts) if _is_adapter_segment(part) or part in ORIGINAL_SEGMENTS)
    end = next(own, 0)
    return ".".join(parts[:end]) if end else None


def is_saved_copy(key: str) -> bool:
    """Whether the tensor belongs to a module that is trained and saved whole beside the adapter."""
    return SAVED_COPY in key.split(".")


def _is_adapter_segment(part: str) -> bool:
    return part == SAVED_COPY or part.startswith(ADAPTER_STARTS)
