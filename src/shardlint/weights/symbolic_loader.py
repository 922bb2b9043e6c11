"""
Transformers' loader on symbolic tensors: which stored elements every converted tensor is made of.

A conversion that cannot be followed without values becomes a group, to be evaluated on values; what would touch the
model is refused by name.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..analysis.wrapper_names import without_adapter
from ..facts import EntryFacts
from ..introspect.walk import Walk, walk
from ..loading.loader import Converted
from ..loading.recorded_conversions import pristine
from ..loading.releases import converted
from ..loading.transformers_loader import TransformersLoader
from ..names import first_line
from .conversions import ConversionGroup, Part, Read, RowByRow, Rows, bytes_taken, cutting_of, resized
from .packed import bits_only, decoded, is_quantised, repacked, statistics
from .storage.stored_tensors import SourceSet
from .symbolic.radix import Untrackable
from .symbolic.tensor import SymbolicTensor

Values = dict[str, torch.Tensor]
Given = Mapping[str, SymbolicTensor] | None


class SymbolicLoader(TransformersLoader):
    """Transformers' loader, with conversions run on symbolic tensors that are kept by live name."""

    def __init__(self, model: Any, sources: SourceSet, *, cast: bool, given: Given = None, **settings: Any) -> None:
        super().__init__(model, **settings)
        self._given = given
        self._cast = cast
        self._sources = sources
        self.regions: dict[str, SymbolicTensor] = {}
        self.statistics: dict[str, SymbolicTensor] = {}
        self.groups: dict[str, ConversionGroup] = {}
        self.refused: dict[str, str] = {}

    def convert(self, name: str, recipe: Any, parts: Sequence[tuple[str, EntryFacts]], dtype: str) -> Converted:
        """Follow the elements; what needs values becomes a group, what would touch the model is refused."""
        stored = self._sources.tensors if self._given is None else self._given
        unreadable = next((entry.key for _, entry in parts if entry.key not in stored), None)
        if unreadable is not None:
            return self._refuse(name, f"{unreadable}: {self._sources.refused.get(unreadable, 'not stored')}")
        deserialising = next(
            (operation for operation in self.operations(recipe) if operation.endswith("Deserialize")), ""
        )
        if deserialising:
            return self._deserialised(name, recipe, parts)
        wanted = getattr(torch, dtype)
        if any(pattern.endswith("_packed") for pattern, _ in parts):  # following each code would make a box of each
            reason = f"{self.operations(recipe)[0]} decodes packed codes, which takes their values"
            return self._group(name, recipe, parts, wanted, reason)
        try:
            found = self._run(name, recipe, [(p, e.key, self._leaf(e.key, recipe, wanted)) for p, e in parts])
        except Untrackable as error:
            return self._group(name, recipe, parts, wanted, str(error))
        except Exception as error:  # whatever a conversion raises while loading
            return Converted({}, f"{type(error).__name__}: {first_line(error)}")
        self.regions.update(found)
        return Converted({target: tuple(tensor.shape) for target, tensor in found.items()})

    def _deserialised(self, name: str, recipe: Any, parts: Sequence[tuple[str, EntryFacts]]) -> Converted:
        """Packed weights that stay packed: as stored, when the library keeps them so; decoded since then: a group."""
        if self._given is not None:
            return self._refuse(name, f"{self.operations(recipe)[0]} of tensors from another recorded stage")
        if len(parts) == 1:  # a weight of the ordinary kind, that passes through
            return self._as_stored(name, parts[0][1].key)
        operation = self.operations(recipe)[0]
        if not operation.startswith("Bnb"):
            return self._refuse(name, f"{operation} rewrites the model, its live layout cannot be compared")
        keys = {pattern: entry.key for pattern, entry in parts}
        if is_quantised(self._live_parameter(name)):
            weight = keys.pop("weight")
            leaves = {f"{name.removesuffix('weight')}{pattern}": self._stored(key) for pattern, key in keys.items()}
            self.statistics.update(leaves)
            self.regions[name] = bits_only(self._stored(weight))  # type: ignore[assignment]
            return Converted({name: self._sources.tensors[weight].shape})
        stored = [Part(pattern, self._sources.tensors[key]) for pattern, key in keys.items()]
        shape = tuple(getattr(self._live_parameter(name), "shape", ()))
        self.groups[name] = ConversionGroup(
            keys=tuple(keys.values()),
            nbytes=bytes_taken(recipe, stored, shape),
            reason=f"{operation} is followed by decoding",
            evaluate=lambda read, _: {name: decoded({pattern: read(key, None) for pattern, key in keys.items()})},
        )
        return Converted({name: None})

    def made_while_loading(self) -> dict[str, str]:
        """Tensors whose values were computed while loading, so that no stored tensor holds them, with the reason."""
        names = set(self.quantised())
        if not names:
            return {}
        names |= {name for aliases, _ in statistics(self._walked) for name in aliases}
        method = getattr(self._quantizer.quantization_config, "quant_method", "the quantiser")
        reason = f"{getattr(method, 'value', method)} quantised it while loading: no stored tensor holds these values"
        return dict.fromkeys(map(without_adapter, names), reason)

    def repacked(self) -> dict[str, str]:
        """Tensors that may be in the order of a kernel, with the reason."""
        return repacked(self._walked)

    @functools.cached_property
    def _walked(self) -> Walk:
        return walk(self._model)

    @functools.cached_property
    def _live_tensors(self) -> Mapping[str, Any]:
        return {alias: tensor.tensor for tensor in self._walked.tensors for alias in tensor.names}

    def _live_parameter(self, name: str) -> Any:
        return self._live_tensors.get(name)

    def _as_stored(self, name: str, key: str) -> Converted:
        self.regions[name] = self._stored(key)
        return Converted({name: self._sources.tensors[key].shape})

    def _stored(self, key: str) -> SymbolicTensor:
        source = self._sources.tensors[key]
        return SymbolicTensor.leaf(key, source.shape, source.dtype)

    def _refuse(self, name: str, reason: str) -> Converted:
        self.refused[name] = reason
        return Converted({name: None})

    def _leaf(self, key: str, recipe: Any, wanted: torch.dtype) -> SymbolicTensor:
        leaf = self._stored(key) if self._given is None else self._given[key]
        return leaf if self._kept_as_stored(leaf.dtype, recipe) else leaf.to(wanted)  # type: ignore[return-value]

    def _kept_as_stored(self, dtype: torch.dtype, recipe: Any) -> bool:
        """Whether the loader hands the tensor over uncast: what a quantiser stores, it decodes itself."""
        if not self._cast or any(hasattr(operation, "hf_quantizer") for operation in recipe.operations):
            return True
        return self._quantizer is not None and not dtype.is_floating_point

    def _run(self, name: str, recipe: Any, parts: Sequence[tuple[str, str, torch.Tensor]]) -> dict[str, Any]:
        group = pristine(recipe)
        for pattern, key, tensor in parts:
            group.add_tensor(name, key, pattern, tensor)
        with torch.no_grad():
            return converted(group, name, model=self._model, quantizer=self._quantizer)

    def _group(
        self, name: str, recipe: Any, parts: Sequence[tuple[str, EntryFacts]], wanted: torch.dtype, reason: str
    ) -> Converted:
        if self._given is not None:
            return self._refuse(name, f"{reason}, and its tensors come out of another recorded stage")
        keys = tuple(dict.fromkeys(entry.key for _, entry in parts))
        shape = tuple(getattr(self._live_parameter(name), "shape", ()))
        stored = [Part(pattern, self._sources.tensors[entry.key]) for pattern, entry in parts]
        cut = cutting_of(recipe, stored, shape)

        def evaluate(read: Read, rows: Rows | None) -> Values:
            found = []
            for part, wanted_rows in cut.parts(rows):
                value = read(part.source.key, wanted_rows)
                if isinstance(cut, RowByRow):
                    value = resized(part, value, rows)
                kept = self._kept_as_stored(value.dtype, recipe)
                found.append((part.pattern, part.source.key, value if kept else value.to(wanted)))
            return self._run(name, recipe, found)

        nbytes = bytes_taken(recipe, stored, shape)
        self.groups[name] = ConversionGroup(
            keys=keys, nbytes=nbytes, reason=reason, evaluate=evaluate, rows=cut.rows, step=cut.step
        )
        return Converted({name: None})
