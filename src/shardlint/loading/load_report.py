"""The `load` section: what a loader reported, and whether each recorded conversion can be reversed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from ..facts import ConversionFacts, LoadFacts, MismatchedKey
from ..introspect.attributes import own, qualified, read
from ..introspect.plain import encodable
from ..names import natural_key
from .live_names import unwrapped
from .recorded_conversions import all_recorded

_KEYS = ("loaded_keys", "missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
_REQUIRED = ("missing_keys", "unexpected_keys")
_LEFT_ON_MODEL = "_hp_checkpoint_load_report"


def load_facts(report: Any, model: Any = None) -> LoadFacts | None:
    """
    Return what `report` and the model's recorded conversions say; None when there is neither.

    `report` is what `from_pretrained(output_loading_info=True)` gave, a mapping with the same keys, or what
    `load_state_dict` returned; None takes the report that the trainer left on the model. Raises `TypeError` for
    anything else.
    """
    conversions = _conversions(model)
    where = "load_info"
    if report is None and model is not None:
        report, where = own(unwrapped(model), _LEFT_ON_MODEL), f"the {_LEFT_ON_MODEL} of the model"
    if report is None:
        return LoadFacts(loader="transformers", reported=False, conversions=conversions) if conversions else None
    values = _report_values(report, where)
    loaded = values.get("loaded_keys")
    return LoadFacts(
        loader=_loader(report, model),
        loaded=None if loaded is None else _keys(loaded),
        missing=_keys(values.get("missing_keys")),
        unexpected=_keys(values.get("unexpected_keys")),
        mismatched=_mismatched(values.get("mismatched_keys")),
        errors=_errors(values.get("error_msgs")),
        conversions=conversions,
    )


def _report_values(report: Any, where: str) -> Mapping[str, Any]:
    """The report by the names that Transformers gives its parts; others leave `_keys` away (`missing`)."""
    if isinstance(report, Mapping):
        values = {key: report.get(key, report.get(_short(key))) for key in _KEYS}
        if not any(key in report or _short(key) in report for key in _KEYS):
            found = ", ".join(map(str, list(report)[:5])) or "no keys"
            raise TypeError(f"{where}: expected a mapping with missing_keys and unexpected_keys, found {found}")
        return values
    if all(hasattr(report, key) or hasattr(report, _short(key)) for key in _REQUIRED):
        return {key: read(report, key, read(report, _short(key))) for key in _KEYS}
    raise TypeError(
        f"{where}: expected what from_pretrained(output_loading_info=True) or load_state_dict returned, "
        f"got {type(report).__name__}"
    )


def _short(key: str) -> str:
    return key.removesuffix("_keys")


def _loader(report: Any, model: Any) -> str:
    if not isinstance(report, Mapping):
        return "load_state_dict" if type(report).__name__ == "_IncompatibleKeys" else type(report).__name__
    known = any(base.__name__ == "PreTrainedModel" for base in type(model).__mro__)
    return "transformers" if known else "load report"


def _keys(value: Any) -> tuple[str, ...]:
    """Keys of a set, list or tuple, each once, in natural order."""
    if value is None or isinstance(value, str):
        return (encodable(value),) if value else ()
    return tuple(sorted({encodable(str(key)) for key in value}, key=natural_key))


def _errors(value: Any) -> tuple[str, ...]:
    if value is None or isinstance(value, str):
        return (encodable(value),) if value else ()
    return tuple(encodable(str(item)) for item in value)


def _mismatched(value: Any) -> tuple[MismatchedKey, ...]:
    """Of tuples (key, stored shape, live shape); a bare key has unknown shapes, which are written as empty."""
    found = []
    for item in value or ():
        key, stored, live = (item, (), ()) if isinstance(item, str) else (*item, (), ())[:3]
        found.append(MismatchedKey(key=encodable(str(key)), stored_shape=_shape(stored), live_shape=_shape(live)))
    return tuple(sorted(found, key=lambda item: natural_key(item.key)))


def _shape(value: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in value)


def _conversions(model: Any) -> tuple[ConversionFacts, ...]:
    return () if model is None else tuple(_conversion(transform) for transform in all_recorded(model))


def _conversion(transform: Any) -> ConversionFacts:
    operations = read(transform, "operations") or ()
    return ConversionFacts(
        qualified_type=qualified(type(transform)),
        sources=_patterns(transform, "source_patterns"),
        targets=_patterns(transform, "target_patterns"),
        operations=tuple(type(operation).__name__ for operation in operations),
        reverse_error=_reverse_error(transform),
    )


def _patterns(transform: Any, name: str) -> tuple[str, ...]:
    """The patterns as they were written: loading rewrites the public attribute."""
    value = read(transform, f"_original_{name}")
    value = value if value is not None else read(transform, name)
    if isinstance(value, str):
        return (encodable(value),)
    return tuple(encodable(str(item)) for item in value) if isinstance(value, (list, tuple)) else ()


def _reverse_error(transform: Any) -> str | None:
    """Why reversing does not work. A copy is reversed: the transform itself stays as the loader left it."""
    reverse = read(transform, "reverse_transform")
    if not callable(reverse):
        return "it has no callable reverse_transform"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _duplicate(transform).reverse_transform()
    except Exception as error:  # the kinds that transforms raise on purpose, and whatever else means "it does not work"
        return encodable(f"{type(error).__name__}: {error}")
    return None


def _duplicate(transform: Any) -> Any:
    try:
        return copy.deepcopy(transform)
    except Exception:  # it may hold what cannot be copied, such as a running future
        return copy.copy(transform)
