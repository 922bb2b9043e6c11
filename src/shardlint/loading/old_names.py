"""Names that a model's own library renames while loading, which no mapping of Transformers knows."""

from __future__ import annotations

import re
from typing import Any

from ..introspect.attributes import own

_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def old_attention_names(model: Any) -> list[tuple[str, str]]:
    """
    The renamings by which diffusers loads old attention blocks into the modules of `model` that stand for them.

    Diffusers marks these modules itself (`_from_deprecated_attn_block`); other models have none. They are pairs of a
    regular expression and its replacement.
    """
    if not hasattr(model, "named_modules"):
        return []
    return [
        (rf"^{re.escape(name)}\.{old}\.", f"{name}.{new}.")
        for name, module in model.named_modules()
        if own(module, "_from_deprecated_attn_block") is True
        for old, new in _ATTENTION.items()
    ]
