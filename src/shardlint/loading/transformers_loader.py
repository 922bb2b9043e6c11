"""
The rules of Transformers' loader, asked from Transformers itself.

This is the only module that uses functions of Transformers without a promise of stability. Whatever is not there,
or behaves differently, becomes a `PlanUnknownError` that names version and function.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..analysis.wrapper_names import without_adapter, without_wrappers
from ..facts import EntryFacts, LoadRemark, RoundTrip
from ..facts.checkpoint import TORCH_DTYPES
from ..names import first_line, natural_key
from .loader import Converted, Ignored, LoadRecipe, PlannedTarget, PlanUnknownError, Routes
from .recorded_conversions import pristine, recorded_list, signature
from .releases import (
    converted,
    frame_of,
    has_conversions,
    knows_its_use,
    lacks,
    renames_before_converting,
    reversed_conversions,
    scope_of,
    version,
)
from .transformers4_rules import KeyRules, saved_name, tied_names

_PURE_QUANTIZER_OPERATIONS = ("Fp8Dequantize",)
_FLOATS = ("F", "BF")
_MAPPING = "conversion_mapping.get_model_conversion_mapping"
# What only quantised activations and caches need: a model whose weights were decoded has no place for it.
_ACTIVATION_SCALES = r"\.(input|output|activation|k|v|q)_(scale|zero_point|global_scale)$"


def guarded(what: str, call: Callable[[], Any]) -> Any:
    """Return `call()`; whatever it raises becomes a `PlanUnknownError` naming version and `what`."""
    try:
        return call()
    except PlanUnknownError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {first_line(error)} ({frame_of(error)})"
        raise PlanUnknownError(f"Transformers {version()}: {what}: {text}") from error


class TransformersLoader:
    """
    The rules for one `PreTrainedModel`.

    `live_model` forbids what could touch the model: then operations of quantisers are not run, and the shapes behind
    them stay unknown. `quantizer` is the `HfQuantizer` that loads the checkpoint, None without one. `renames` are given
    to the loader as its `key_mapping`; without any, those that the load recorded on the model are. `stage` replaces
    the mapping of the model type: the conversions of the last of several recorded stages.
    """

    def __init__(
        self,
        model: Any,
        *,
        quantizer: Any = None,
        live_model: bool = True,
        renames: Sequence[tuple[str, str]] = (),
        stage: Sequence[Any] | None = None,
    ) -> None:
        self._model = model
        self._key_mapping = dict(renames) or None
        self._stage = stage
        self._two_ways: dict[str, str] = {}
        self._quantizer = quantizer
        self._live_model = live_model
        self.title = f"transformers {version()}"
        self.quantization = _describe(quantizer)
        if getattr(model, "_pp_stage", None) is not None:
            raise PlanUnknownError("the model is one stage of a pipeline, whose other keys belong to other ranks")
        self._used: set[int] = set()
        self._mapping: list[Any] = []
        self._converters: list[Any] = []
        self._key_rules: KeyRules | None = None
        self._applied: tuple[str, ...] = ()
        if has_conversions():
            guarded("reading the conversion mapping", self._read_mapping)
        elif stage is not None:
            raise PlanUnknownError(f"the model records conversions: {lacks(_MAPPING)}")
        else:
            self._key_rules = guarded(
                "reading the key mapping", lambda: KeyRules.of(model, self._key_mapping, quantizer)
            )

    def _read_mapping(self) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        if self._stage is None:
            mapping = get_model_conversion_mapping(self._model, self._key_mapping, self._quantizer)
            self._mapping = _scoped([*mapping])
            self._mapping = [*self._only_recorded(WeightRenaming), *self._mapping]
        else:
            self._mapping = _scoped([*self._stage])
        self._renamings = [item for item in self._mapping if isinstance(item, WeightRenaming)]
        self._converters = [item for item in self._mapping if isinstance(item, WeightConverter)]
        self._plain_renaming = WeightRenaming
        self._natural_key = dot_natural_key
        self._rename = rename_source_key
        self._prefix = str(self._model.base_model_prefix or "")
        # Two converters may share a source pattern: the loader matches with the first and keeps the last.
        self._by_pattern = {
            pattern: converter for converter in self._converters for pattern in converter.source_patterns
        }

    def _only_recorded(self, renaming: type) -> Sequence[Any]:
        """
        Conversions that the load recorded and that are none of the model type's: a `key_mapping`, a trainer's own.

        They come first, as they do in loading. The record alone would not do: it has only what took part, and loads
        that dequantise delete it. Renamings that the owner declared stand for the recorded ones.
        """
        known = {signature(item) for item in self._mapping}
        found = [item for item in _scoped(list(recorded_list(self._model))) if signature(item) not in known]
        if self._quantizer is not None:
            found = [item for item in found if isinstance(item, renaming)]
        return [item for item in found if not (self._key_mapping and type(item) is renaming)]

    def ordered(self, keys: Sequence[str]) -> Sequence[str]:
        return sorted(keys, key=natural_key if self._key_rules else self._natural_key)

    def routes(self, keys: Sequence[str], live: Mapping[str, PlannedTarget]) -> Routes:
        found: Routes = guarded("renaming keys", lambda: self._routes(keys, live))
        return found

    def _routes(self, keys: Sequence[str], live: Mapping[str, PlannedTarget]) -> Routes:
        if self._key_rules is not None:
            self._applied = self._key_rules.applied(keys)
            return Routes(self._key_rules.names(keys, live), {})
        names = list(keys)
        for renaming in self._renamings:  # one renaming over all keys, then the next: the same as key by key
            if self._may_match(renaming, names):
                before, names = names, [renaming.rename_source_key(name)[0] for name in names]
                if names != before:
                    self._used.add(id(renaming))
        converters = [converter for converter in self._converters if self._may_match(converter, names)]
        recipes: dict[int, LoadRecipe] = {}
        for position, key in enumerate(keys):
            name, pattern = self._route(key, names[position], converters, live)
            names[position] = name
            if pattern is not None:
                recipes[position] = LoadRecipe(self._by_pattern[pattern], pattern)
                self._used.add(id(self._by_pattern[pattern]))
        return Routes(names, recipes)

    def _may_match(self, transform: Any, names: Sequence[str]) -> bool:
        """Whether some name may match, asked with one search over all of them. True when that cannot be said."""
        pattern = transform.compiled_sources.pattern
        if type(transform).rename_source_key is not _base_rename(type(transform)) or re.search(r"\\[AZ]|\[\^", pattern):
            return True
        text = "\n".join(names)
        if text.count("\n") != len(names) - 1:
            return True
        if scope_of(transform) is not None:
            pattern = re.sub(r"(?<!\\)\^", "", pattern)
        return re.search(pattern, text, re.MULTILINE) is not None

    def _route(
        self, key: str, name: str, converters: Sequence[Any], live: Mapping[str, PlannedTarget]
    ) -> tuple[str, str | None]:
        pattern = None
        for converter in converters:
            name, pattern = converter.rename_source_key(name)
            if pattern is not None:
                break
        name = self._with_prefix(name, live)
        if name not in live and key in live:
            return self._with_prefix(key, live), None
        return name, pattern

    def _with_prefix(self, name: str, live: Mapping[str, PlannedTarget]) -> str:
        if name.startswith(self._prefix) or f"{self._prefix}.{name}" in live:
            found = str(self._rename(name, [], [], self._prefix, live)[0])
            if found != name and name in live:
                self._two_ways[name] = found
            return found
        return name

    def operations(self, conversion: Any) -> tuple[str, ...]:
        return tuple(type(operation).__name__ for operation in conversion.operations)

    def convert(self, name: str, conversion: Any, parts: Sequence[tuple[str, EntryFacts]], dtype: str) -> Converted:
        if self._opaque(conversion):
            return Converted({name: None}, "")
        try:
            return self._convert(name, conversion, parts, dtype)
        except Exception as error:
            text = first_line(error, kind=True)
            if isinstance(error, NotImplementedError) or "meta" in str(error).lower():
                return Converted({name: None}, "")  # it needs values: no defect of the checkpoint
            return Converted({}, text)

    def _opaque(self, recipe: Any) -> bool:
        """Whether an operation may touch the model, or needs more than shapes."""
        for operation in recipe.operations:
            if hasattr(operation, "hf_quantizer"):
                kind = type(operation).__name__
                if kind.endswith("Deserialize") or (self._live_model and kind not in _PURE_QUANTIZER_OPERATIONS):
                    return True
        return False

    def _convert(self, name: str, recipe: Any, parts: Sequence[tuple[str, EntryFacts]], dtype: str) -> Converted:
        import torch

        group = copy.deepcopy(recipe) if self._quantizer is None else pristine(recipe)
        live_dtype = getattr(torch, dtype)
        quantised = any(hasattr(operation, "hf_quantizer") for operation in group.operations)
        for pattern, entry in parts:
            kind = live_dtype
            if quantised or (self._quantizer is not None and not entry.dtype.startswith(_FLOATS)):
                kind = getattr(torch, TORCH_DTYPES.get(entry.dtype, "uint8"), torch.uint8)  # kept as stored
            group.add_tensor(name, entry.key, pattern, torch.empty(entry.shape, dtype=kind, device="meta"))
        with torch.no_grad():
            result = converted(group, name, model=self._model, quantizer=self._quantizer)
        return Converted({target: tuple(int(size) for size in tensor.shape) for target, tensor in result.items()})

    def ties(self) -> Mapping[str, str]:
        found = guarded("reading the ties", self._declared_ties)
        return {without_wrappers(name): without_wrappers(source) for name, source in found.items()}

    def _declared_ties(self) -> dict[str, str]:
        if self._key_rules is not None:
            return tied_names(self._model)
        # After loading, the attribute lacks the pairs that were stored with different values: ask the class as well.
        declared = self._model.get_expanded_tied_weights_keys(all_submodels=True)
        return {**declared, **(getattr(self._model, "all_tied_weights_keys", None) or {})}

    def quantised(self) -> frozenset[str]:
        if self._quantizer is None or self._quantizer.pre_quantized:
            return frozenset()
        asked = self._quantizer.param_needs_quantization
        names = [name for name, _ in self._model.named_parameters(remove_duplicate=False)]
        found = guarded("asking what is quantised", lambda: [name for name in names if asked(self._model, name)])
        return frozenset(without_wrappers(without_adapter(name)) for name in found)

    def ignored(self) -> Ignored:
        return Ignored(*guarded("reading the ignore lists", self._ignore_lists))

    def _ignore_lists(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        unexpected = set(self._model._keys_to_ignore_on_load_unexpected or ())
        buffers = [name for name, _ in self._model.named_buffers()]
        if any(name.endswith("rotary_emb.inv_freq") for name in buffers):
            unexpected.add(r"rotary_emb\.inv_freq")
        if any(name.endswith("position_ids") for name in buffers):
            unexpected.add(r"(^|\.)position_ids$")
        if getattr(getattr(self._quantizer, "quantization_config", None), "dequantize", False):
            unexpected.add(_ACTIVATION_SCALES)
        missing = tuple(sorted(set(self._model._keys_to_ignore_on_load_missing or ())))
        for pattern in (*missing, *unexpected):
            re.compile(pattern)
        return missing, tuple(sorted(unexpected))

    def remarks(self) -> Sequence[LoadRemark]:
        first: dict[str, Any] = {}
        found = []
        for name, other in self._two_ways.items():
            detail = (
                f"a stored key of that name may be for {name} or for {other}, both are live; the loader takes {other}"
            )
            found.append(LoadRemark(kind="ambiguous-prefix", name=name, keys=(name, other), detail=detail))
        for converter in self._converters:
            for pattern in converter.source_patterns:
                other = first.setdefault(pattern, converter)
                if self._took_part(converter) | self._took_part(other) and _recipe(other) != _recipe(converter):
                    detail = f"{other!r} and {converter!r} take the same source pattern"
                    found.append(LoadRemark(kind="shared-pattern", name=pattern, keys=(), detail=detail))
        return found

    def round_trips(
        self, sources: Mapping[str, str], live: Mapping[str, PlannedTarget]
    ) -> tuple[Sequence[RoundTrip], int]:
        if self._key_rules is not None:
            saved = guarded("reversing names", lambda: [saved_name(self._model, name) for name in sources])
        else:
            try:
                used = [item for item in self._mapping if self._took_part(item)]
                reverse = reversed_conversions(self._mapping, used)
            except Exception:
                return (), 0  # whether a conversion can be reversed at all is another question
            if not reverse:
                return (), 0
            saved = guarded("reversing names", lambda: [self._saved(name, reverse) for name in sources])
        wanted = self.routes(list(sources.values()), live)
        reached = self.routes(saved, live)
        found = [
            RoundTrip(name=name, key=sources[name], saved=key, loaded=there)
            for name, key, here, there in zip(sources, saved, wanted.names, reached.names, strict=True)
            if here != there
        ]
        return found, len(saved)

    def _saved(self, name: str, reverse: Sequence[Any]) -> str:
        """Return the name under which saving writes `name`: at most one converter, then all renamings."""
        renamings = [item for item in reverse if isinstance(item, self._plain_renaming)]
        early = bool(reverse) and renames_before_converting(reverse[0])
        if early:
            name = _renamed(name, renamings)
        for converter in reverse:
            if not isinstance(converter, self._plain_renaming):
                name, pattern = converter.rename_source_key(name)
                if pattern is not None:
                    break
        name = name.replace("*.", "0.")
        return name if early else _renamed(name, renamings)

    def conversions(self) -> tuple[str, ...]:
        return self._applied or tuple(repr(item) for item in self._mapping if self._took_part(item))

    def _took_part(self, conversion: Any) -> bool:
        """Whether a conversion took part in this plan; what does not remember it itself is noted while routing."""
        return conversion.was_used() if knows_its_use(conversion) else id(conversion) in self._used


def _renamed(name: str, renamings: Sequence[Any]) -> str:
    for renaming in renamings:
        name = renaming.rename_source_key(name)[0]
    return name


def _base_rename(kind: type) -> Any:
    """Return the plain `rename_source_key`, which does nothing but match `compiled_sources`."""
    for base in kind.__mro__[::-1]:
        if "rename_source_key" in vars(base):
            return vars(base)["rename_source_key"]
    return None


def _scoped(mapping: list[Any]) -> list[Any]:
    """The same conversions, their scopes without the names of wrappers."""
    for transform in mapping:
        if scope := scope_of(transform):
            transform.scope_prefix = without_wrappers(scope)
    return mapping


def _recipe(converter: Any) -> tuple[Any, ...]:
    def settings(operation: Any) -> tuple[str, ...]:
        return (type(operation).__name__, *sorted(f"{name}={value!r}" for name, value in vars(operation).items()))

    operations = tuple(settings(operation) for operation in converter.operations)
    return tuple(converter.source_patterns), tuple(converter.target_patterns), operations


def _describe(quantizer: Any) -> str:
    if quantizer is None:
        return ""
    config = quantizer.quantization_config
    method = getattr(config, "quant_method", "")
    how = "dequantised while loading" if getattr(config, "dequantize", False) else "kept as stored"
    return f"{getattr(method, 'value', method)}, {how}"
