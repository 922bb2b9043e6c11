"""
How Transformers 4 names keys: legacy names, the class's or the caller's key mapping, the prefix of the base model.

That line converts no tensor: an expert is a module, and a stored key is for one live name. What the class itself says
is asked from the class; the prefix of the base model is decided once for the whole checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from ..analysis.wrapper_names import without_wrappers
from ..names import joined
from .loader import PlannedTarget, PlanUnknownError
from .releases import lacks

# Quantisers whose tensors stand in the model under the names of the checkpoint. The others make theirs of several.
_PLAIN_NAMES = ("gptq", "awq", "compressed-tensors", "fbgemm_fp8", "fp8")


@frozen(kw_only=True)
class KeyRules:
    """The rules for one model. `key_mapping` is the caller's: patterns and replacements, the first that matches."""

    model: Any
    key_mapping: Mapping[str, str]

    @classmethod
    def of(cls, model: Any, key_mapping: Mapping[str, str] | None, quantizer: Any) -> KeyRules:
        """Return the rules of `model`. Raises `PlanUnknownError` for a quantiser that does more than fill names."""
        if quantizer is not None and not _fills_names(quantizer):
            what = lacks("quantizers.HfQuantizer.get_weight_conversions")
            raise PlanUnknownError(f"how {type(quantizer).__name__} fills tensors cannot be followed: {what}")
        return cls(model=model, key_mapping=key_mapping or class_mapping(model))

    def names(self, keys: Sequence[str], live: Mapping[str, PlannedTarget]) -> list[str]:
        """Return the live name of each key, or its last name when that is not live."""
        prefix = str(self.model.base_model_prefix or "")
        if not prefix:
            return [self.renamed(key) for key in keys]
        stored = any(key.startswith(prefix) for key in keys)
        wanted = hasattr(self.model, prefix) or any(name.startswith(prefix) for name in live)
        if wanted and not stored:
            return [f"{prefix}.{self.renamed(key)}" for key in keys]
        if stored and not wanted:
            return [_inner(self.renamed(key), f"{prefix}.", live) for key in keys]
        return [self.renamed(key) for key in keys]

    def renamed(self, key: str) -> str:
        """Return the name of a key without regard to the base model."""
        fixed = self.model._fix_state_dict_key_on_load(key)
        name = str(fixed[0] if isinstance(fixed, tuple) else fixed)
        for pattern, replacement in self.key_mapping.items():
            name, count = re.subn(pattern, replacement, name)
            if count:
                break
        return name

    def applied(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Describe the renamings that some key needs."""
        said = [f"{pattern} -> {self.key_mapping[pattern]}" for pattern in self.key_mapping]
        return tuple(said) if any(self.renamed(key) != key for key in keys) else ()


def _inner(name: str, prefix: str, live: Mapping[str, PlannedTarget]) -> str:
    """The name within the base model; a key of the head is for nothing, though its name may be live."""
    if name.startswith(prefix):
        return name.removeprefix(prefix)
    return f"{name} (not under {prefix})" if name in live else name


def saved_name(model: Any, name: str) -> str:
    """Return the name under which saving writes `name`: the class's own mapping backwards, as the library reads it."""
    for replacement, pattern in class_mapping(model).items():
        written = re.sub(r"\(.*\)", "", replacement.lstrip("^"))
        name, count = re.subn(pattern, written, name)
        if count:
            break
    fixed = model._fix_state_dict_key_on_save(name)
    return str(fixed[0] if isinstance(fixed, tuple) else fixed)


def class_mapping(model: Any) -> Mapping[str, str]:
    """Return the class's own mapping, which is used for the classes that the library lists and for no other."""
    from transformers import modeling_utils

    listed = getattr(modeling_utils, "VLMS", ())
    names = [kind.__name__.lower() for kind in type(model).__mro__[:-1]]
    if not any(text in name for text in listed for name in names):
        return {}
    return getattr(model, "_checkpoint_conversion_mapping", None) or {}


def _fills_names(quantizer: Any) -> bool:
    config = quantizer.quantization_config
    method = getattr(config, "quant_method", "")
    plain = str(getattr(method, "value", method)) in _PLAIN_NAMES
    return plain and bool(quantizer.pre_quantized) and not getattr(config, "dequantize", False)


def tied_names(model: Any) -> dict[str, str]:
    """
    Return the ties of a model, as {target: source} of live names without wrappers.

    They are those of output to input embeddings that a configuration asks for, and what the class lists as tied and
    the model shares; a tie that the class makes by its own `_tie_weights` and that is broken by now is not seen.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if hasattr(module, "get_output_embeddings") and _ties_wanted(module):
            for target, source in _embeddings(module, name, names):
                found.setdefault(target, source)
    for target, source in _listed_and_shared(model):
        found.setdefault(target, source)
    return found


def _listed_and_shared(model: Any) -> Iterator[tuple[str, str]]:
    patterns = [
        joined(re.escape(name), pattern)
        for name, module in model.named_modules()
        for pattern in (*(getattr(module, "_tied_weights_keys", None) or ()),)
    ]
    if not patterns:
        return
    listed = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    groups: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(tensor), []).append(name)
    for group in groups.values():
        source = next((name for name in group if not listed.search(name)), group[0])
        yield from (
            (without_wrappers(name), without_wrappers(source))
            for name in group
            if name != source and listed.search(name)
        )


def _ties_wanted(module: Any) -> bool:
    config = getattr(module, "config", None)
    text_config = getattr(config, "get_text_config", None)
    text = config if text_config is None else text_config(decoder=True)
    return bool(getattr(text, "tie_word_embeddings", True))


def _embeddings(module: Any, name: str, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    try:
        ends = module.get_output_embeddings(), module.get_input_embeddings()
    except Exception:  # a class without embeddings, or one that has no text
        return
    paths = [names.get(id(end), name) if hasattr(end, "weight") else None for end in ends]
    if paths[0] is not None and paths[1] is not None and paths[0] != paths[1]:
        yield without_wrappers(joined(paths[0], "weight")), without_wrappers(joined(paths[1], "weight"))
