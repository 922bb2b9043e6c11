"""Whether a model's checkpoint keys are its live names, or a conversion of Transformers stands between them."""

from __future__ import annotations

from typing import Any

from .reading import own, read

IDENTITY = "identity"
CONVERSIONS = "conversions"


def key_mapping(root: Any) -> str | None:
    """
    Return `identity`, `conversions`, or None when it cannot be known.

    A plain module is its own mapping. Of a Transformers model the library is asked which transforms its loader would
    use (the five legacy renames that every model gets do not count); of a PEFT model, the model inside. A quantised
    model is stored in parts, so its keys are never its names.
    """
    inner = _inside_adapter(root)
    if not _derives(inner, "PreTrainedModel"):
        return None if any(_derives(item, "PreTrainedModel") for item in inner.modules()) else IDENTITY
    if read(inner, "hf_quantizer") is not None or own(inner, "_weight_conversions"):
        return CONVERSIONS
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping

        transforms = get_model_conversion_mapping(inner, add_legacy=False)
    except Exception:  # another version of the library, or a configuration that it cannot read
        return None
    return CONVERSIONS if transforms else IDENTITY


def _inside_adapter(root: Any) -> Any:
    if not _derives(root, "PeftModel"):
        return root
    try:
        return root.get_base_model()
    except Exception:  # an adapter without a base model of its own
        return root


def _derives(module: Any, name: str) -> bool:
    """Whether a class of that name stands among the bases: nothing has to be imported to ask."""
    return any(base.__name__ == name for base in type(module).__mro__)
