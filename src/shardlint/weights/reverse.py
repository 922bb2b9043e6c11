"""The reverse conversions, as `save_pretrained` runs them, by Transformers' own code on symbolic tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ..loading.loader import PlanUnknownError
from ..loading.recorded_conversions import recorded_list, recorded_stages
from ..loading.releases import frame_of, has_conversions, lacks, version
from ..loading.stages import LoadStages
from ..loading.transformers4_rules import saved_name
from ..names import first_line
from .symbolic.radix import Untrackable
from .symbolic.tensor import SymbolicTensor

Tensors = Mapping[str, SymbolicTensor]


class NotReversibleError(Exception):
    """The reverse conversions raise: the model cannot be exported in its original format. The text says why."""

    def __init__(self, operation: str, text: str) -> None:
        self.operation = operation
        super().__init__(text)


def reverse(model: Any, tensors: Tensors, load: LoadStages) -> dict[str, SymbolicTensor]:
    """
    Run the reverse conversions over live tensors, as saving does; recorded stages the last one first.

    Raises `NotReversibleError` when they raise, and `PlanUnknownError` when one cannot be followed without values.
    """
    if not load.recorded:
        recorded = recorded_list(model)
        has_list = isinstance(getattr(model, "_weight_conversions", None), (list, tuple))
        return reverted(model, tensors, recorded if has_list else None)
    stages = recorded_stages(model)
    found = dict(tensors)
    for stage in (stages.replacement, stages.base) if stages else load.before[::-1]:
        found = reverted(model, found, stage)
    return found


class _Saving:
    """The model with another record of conversions; the model itself is not touched."""

    def __init__(self, model: Any, conversions: Sequence[Any] | None) -> None:
        self._model = model
        self.config = getattr(model, "config", None)
        # Reversing a conversion rewrites its patterns in place.
        self._weight_conversions = (
            None if conversions is None else [copy.deepcopy(conversion) for conversion in conversions]
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def reverted(model: Any, tensors: Tensors, conversions: Sequence[Any] | None) -> dict[str, SymbolicTensor]:
    """Run one list of reverse conversions, None for that of the model. Raises as `reverse` does."""
    if conversions is not None and not conversions:
        return dict(tensors)
    if not has_conversions():
        return _renamed(model, tensors, conversions)
    from transformers.core_model_loading import revert_weight_conversion

    saving = _Saving(model, conversions)
    _require_reverses(saving._weight_conversions or ())
    try:
        found: dict[str, SymbolicTensor] = revert_weight_conversion(saving, dict(tensors))
    except Untrackable as error:
        raise PlanUnknownError(f"the export cannot be followed without values: {error}") from error
    except (AttributeError, ImportError, NameError) as error:  # between the libraries, and no fault of the conversions
        text = f"{type(error).__name__}: {first_line(error)} ({frame_of(error)})"
        raise PlanUnknownError(f"Transformers {version()}: reversing the conversions: {text}") from error
    except Exception as error:  # whatever a conversion raises when it saves
        text = f"the reverse conversions raise {type(error).__name__}: {first_line(error)}"
        raise NotReversibleError("its conversions", text) from error
    return found


def _renamed(model: Any, tensors: Tensors, conversions: Sequence[Any] | None) -> dict[str, SymbolicTensor]:
    """The tensors by the names that Transformers 4 writes, which converts none."""
    if conversions is not None or not hasattr(model, "_fix_state_dict_key_on_save"):
        raise PlanUnknownError(
            f"the model records conversions: {lacks('conversion_mapping.get_model_conversion_mapping')}"
        )
    return {saved_name(model, name): tensor for name, tensor in tensors.items()}


def _require_reverses(conversions: Sequence[Any]) -> None:
    """Raises `NotReversibleError` for a conversion without a reverse, with its operations."""
    for conversion in conversions:
        try:
            copy.deepcopy(conversion).reverse_transform()
        except Exception as error:
            names = " and ".join(type(operation).__name__ for operation in getattr(conversion, "operations", ()))
            names = names or type(conversion).__name__
            targets = ", ".join(conversion.target_patterns)
            text = f"{names} of {targets} has no reverse: {type(error).__name__}: {first_line(error)}"
            raise NotReversibleError(names, text) from error
