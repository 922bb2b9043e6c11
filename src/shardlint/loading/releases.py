"""
What releases of Transformers have in different forms, or do not have: asked by attribute, never by number.

What is absent is either not needed (a scope that no conversion has), or it becomes a `PlanUnknownError` that says which
release brought it.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .loader import PlanUnknownError

# The release that brought what cannot be done without; it is said to the user and decides nothing.
_SINCE = {
    "conversion_mapping.get_model_conversion_mapping": "5.0",
    "initialization.no_tie_weights": "5.1",
    "initialization.meta_device_safe_creation_ops": "5.5.4",
    "quantizers.HfQuantizer.get_weight_conversions": "5.0",
}


def version() -> str:
    """Return the version of the installed Transformers. Raises `PlanUnknownError` when there is none."""
    try:
        import transformers
    except ImportError as error:
        raise PlanUnknownError("Transformers is not installed") from error
    return str(transformers.__version__)


def lacks(what: str) -> str:
    """Say that the installed Transformers lacks `what`, and from which release on it is there."""
    since = _SINCE.get(what)
    return f"Transformers {version()} lacks {what}" + (f", which is there from {since} on" if since else "")


def frame_of(error: BaseException) -> str:
    """Return where an exception was raised: the innermost frame of Python, by file and line; empty without one."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{'/'.join(Path(frames[-1].filename).parts[-3:])}:{frames[-1].lineno}" if frames else ""


def is_pretrained(model: Any) -> bool:
    """Whether the model is one of Transformers', without importing Transformers."""
    return any(
        f"{kind.__module__}.{kind.__name__}".endswith("modeling_utils.PreTrainedModel") for kind in type(model).__mro__
    )


def has_conversions() -> bool:
    """Whether the loader has conversions of weights; before it had them, it only renamed keys."""
    try:
        from transformers import conversion_mapping
    except ImportError:
        return False
    return hasattr(conversion_mapping, "get_model_conversion_mapping")


def scope_of(transform: Any) -> str | None:
    """Return the part of the model that a conversion is for, None for all of it."""
    scope = getattr(transform, "scope_prefix", None)
    return scope if isinstance(scope, str) else None


def knows_its_use(transform: Any) -> bool:
    """Whether a conversion remembers that it took part in a load; saving reverses every recorded one if it does not."""
    return hasattr(transform, "was_used")


def converted(transform: Any, name: str, *, model: Any, quantizer: Any = None) -> dict[str, Any]:
    """Run a conversion on the tensors it was given, and return its tensors by live name. Raises what it raises."""
    given = {} if quantizer is None else {"hf_quantizer": quantizer}
    result = transform.convert(name, model=model, config=getattr(model, "config", None), **given)
    tensors: Mapping[str, Any] = result[0] if isinstance(result, tuple) else result  # with a list of errors, once
    return {target: value[0] if isinstance(value, list) else value for target, value in tensors.items()}


def reversed_conversions(mapping: Sequence[Any], used: Sequence[Any]) -> list[Any]:
    """
    Return the reverse of the conversions that saving takes back, in the order in which saving applies them.

    `used` are those of `mapping` that took part. Raises what a conversion without a reverse raises.
    """
    if all(knows_its_use(item) for item in mapping):
        return [item.reverse_transform() for item in mapping[::-1] if item in used]
    return [item.reverse_transform() for item in mapping]


def renames_before_converting(transform: Any) -> bool:
    """Whether saving applies the reversed renamings before the reversed converter, as it did without scopes."""
    return not hasattr(transform, "scope_prefix")
