"""
Buffers that follow from the configuration, computed again and compared.

Three recipes, tried in turn: what the module itself promises (`_hp_rebuildable_buffer_specs`), the initialiser of the
enclosing Transformers model, which writes every buffer that no checkpoint stores, and the constructor of a rotary
embedding. They run on a copy of the module whose buffers are new and whose parameters are on meta, so that nothing
of the model can be written; random numbers that they draw are put back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen

from ..facts import DerivedBuffer
from ..introspect.attributes import own, read
from ..introspect.walk import Walk, WalkedModule, registry, text
from ..names import joined
from .declarations import REBUILDABLE_SPECS, registry_set
from .invariants import random_states_kept

LARGEST = 2**23  # elements of one buffer
BUDGET = 2**26  # elements of all buffers
_INNER = 64  # modules below one with derived buffers

EQUAL_BELOW = 1e-4
WRONG_ABOVE = 1e-2


@frozen
class _Item:
    """A derived buffer: its module, its name in it, its FQN, and the model that would initialise it."""

    module: WalkedModule
    name: str
    fqn: str
    model: Any
    buffer: Any


@frozen
class _Answer:
    """What a recipe gives for one buffer: alternatives of which any is right."""

    recipe: str
    values: tuple[Any, ...]


def derived_buffers(walk: Walk) -> tuple[DerivedBuffer, ...]:
    """Compare every buffer that is stored in no checkpoint with what can be computed again."""
    import torch

    budget = BUDGET
    judged = []
    with torch.no_grad(), torch.device("cpu"), random_states_kept():
        for items in _by_module(walk).values():
            budget -= sum(candidate.buffer.numel() for candidate in items)
            if budget < 0:
                judged += [
                    _unknown(candidate, "too many elements in all derived buffers together") for candidate in items
                ]
            else:
                judged += _compared(items)
    return tuple(judged)


def _by_module(walk: Walk) -> dict[int, list[_Item]]:
    models = {walked.fqn: walked.module for walked in walk.modules if _initialises(walked.module)}
    seen: set[int] = set()
    grouped: dict[int, list[_Item]] = {}
    for module in walk.modules:
        hidden = registry_set(module.module, "_non_persistent_buffers_set")
        for key, buffer in registry(module.module, "_buffers").items():
            name, promised = text(key), key in registry(module.module, REBUILDABLE_SPECS)
            if (key in hidden or promised) and readable(buffer) and id(buffer) not in seen:
                seen.add(id(buffer))
                candidate = _Item(module, name, joined(module.fqn, name), _enclosing(models, module.fqn), buffer)
                grouped.setdefault(id(module.module), []).append(candidate)
    return grouped


def _initialises(module: Any) -> bool:
    return any(base.__name__ == "PreTrainedModel" for base in type(module).__mro__)


def _enclosing(models: Mapping[str, Any], fqn: str) -> Any:
    """The innermost model around (or at) the module."""
    parts = fqn.split(".") if fqn else []
    for length in range(len(parts), -1, -1):
        model = models.get(".".join(parts[:length]))
        if model is not None:
            return model
    return None


def readable(buffer: Any) -> bool:
    """Whether a buffer is a plain tensor whose values can be compared, and not too large."""
    return (
        type(buffer).__name__ in ("Tensor", "Buffer")
        and not read(buffer, "is_meta", True)
        and 0 < buffer.numel() <= LARGEST
        and not buffer.dtype.is_complex
    )


def _compared(items: list[_Item]) -> Iterator[DerivedBuffer]:
    try:
        answers = _answers(items)
    except Exception as error:  # the recipes are code of the model
        reason = f"computing it again raised {type(error).__name__}: {error}"[:300]
        yield from (_unknown(candidate, reason) for candidate in items)
        return
    for candidate in items:
        answer = answers.get(candidate.name)
        if answer is None:
            yield _unknown(candidate, "no recipe computes it")
        elif _may_change(answer.values[0]):
            yield _unknown(candidate, "it begins as a constant, as counters and caches do")
        else:
            yield _judged(candidate, answer)


def _may_change(value: Any) -> bool:
    """Whether a buffer that begins so may rightly hold something else later: a counter, a cache, a running mean."""
    if value.ndim == 0 or not value.dtype.is_floating_point:
        return bool(value.ndim == 0)
    first = value.reshape(-1)[0]
    return bool((value == first).all()) and (value.numel() > 1 or float(first) == 0.0)


def _unknown(candidate: _Item, detail: str) -> DerivedBuffer:
    return DerivedBuffer(fqn=candidate.fqn, recipe="", status="unknown", detail=detail)


def _answers(items: list[_Item]) -> dict[str, _Answer]:
    module = items[0].module.module
    wanted = {candidate.name for candidate in items}
    answers = dict(_promised(module, wanted))
    for recipe in (_initialised, _constructed):
        left = wanted - set(answers)
        if left:
            answers |= {name: answer for name, answer in recipe(items[0]).items() if name in left}
    for name, answer in answers.items():
        answers[name] = _Answer(answer.recipe, (*answer.values, *_rotary_alternatives(module, name)))
    return answers


def _promised(module: Any, names: set[str]) -> Iterator[tuple[str, _Answer]]:
    """What the module's own recipes give: a factory that takes nothing, or the name of a source buffer."""
    for key, spec in registry(module, REBUILDABLE_SPECS).items():
        name = text(key)
        if name not in names:
            continue
        factory, source = _part(spec, "factory"), _part(spec, "source")
        if callable(factory):
            yield name, _Answer("the module's factory", (_called(factory, module),))
        elif isinstance(source, str):
            origin = registry(module, "_buffers").get(source, own(module, source))
            if read(origin, "shape") is not None:
                yield name, _Answer(f"the module's source {source}", (origin,))


def _part(spec: Any, name: str) -> Any:
    return spec.get(name) if isinstance(spec, Mapping) else read(spec, name)


def _called(factory: Callable[..., Any], module: Any) -> Any:
    parameters = inspect.signature(factory).parameters.values()
    needed = [
        parameter for parameter in parameters if parameter.default is parameter.empty and parameter.kind in _POSITIONAL
    ]
    return factory(_copy(module)) if len(needed) == 1 else factory()


def _initialised(candidate: _Item) -> dict[str, _Answer]:
    """Let the enclosing model initialise a copy of the module, twice: what differs is random and no derived buffer."""
    import torch

    if candidate.model is None:
        return {}
    results = []
    for seed in (0, 1):
        torch.default_generator.manual_seed(seed)
        copy = _copy(candidate.module.module)
        if copy is None:
            return {}
        candidate.model._init_weights(copy)
        results.append(dict(copy._buffers))
    answers = {}
    for name, value in results[0].items():
        if value is not None and _written(value) and torch.equal(value, results[1][name]):
            answers[text(name)] = _Answer(f"{type(candidate.model).__name__}._init_weights", (value,))
    return answers


def _written(value: Any) -> bool:
    """Whether the initialiser wrote the whole copy: it began as NaN, or as the least number of its dtype."""
    import torch

    return bool((value != _blank(value.dtype)).all()) and not bool(torch.isnan(value).any())


def _blank(dtype: Any) -> Any:
    import torch

    if dtype is torch.bool:
        return None
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min


def _copy(module: Any) -> Any:
    """
    A copy of the module that shares no tensor with it: blank buffers in float32, parameters on meta.

    None when it has too many modules inside, or keeps tensors where a copy would miss them.
    """
    import torch

    count = 0

    def copied(source: Any) -> Any:
        nonlocal count
        count += 1
        if count > _INNER:
            raise _NoCopyError
        clone = object.__new__(type(source))
        values = dict(vars(source))
        values.pop("_is_hf_initialized", None)
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                values[key] = _blank_like(value)
            elif isinstance(value, (list, tuple, dict, set)) and _holds_tensor(value) and key not in _REGISTRIES:
                raise _NoCopyError
        values["_buffers"] = {key: _blank_like(value) for key, value in source._buffers.items()}
        values["_parameters"] = {key: _on_meta(value) for key, value in source._parameters.items()}
        values["_modules"] = {key: child and copied(child) for key, child in source._modules.items()}
        vars(clone).update(values)
        return clone

    try:
        return copied(module)
    except _NoCopyError:
        return None


class _NoCopyError(Exception):
    """The module cannot be copied without sharing tensors."""


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REGISTRIES = ("_buffers", "_parameters", "_modules")


def _holds_tensor(value: Any) -> bool:
    import torch

    members = value.values() if isinstance(value, dict) else value
    return any(isinstance(member, (torch.Tensor, list, tuple, dict)) for member in members)


def _blank_like(value: Any) -> Any:
    import torch

    if value is None:
        return None
    dtype = torch.float32 if value.dtype.is_floating_point and value.element_size() < 4 else value.dtype
    if dtype is torch.bool:
        return torch.zeros(value.shape, dtype=dtype)
    return torch.full(value.shape, _blank(dtype), dtype=dtype, device="cpu")


def _on_meta(value: Any) -> Any:
    import torch

    if value is None:
        return None
    return torch.nn.Parameter(torch.empty(value.shape, dtype=value.dtype, device="meta"), requires_grad=False)


def _constructed(candidate: _Item) -> dict[str, _Answer]:
    """Build a rotary embedding of Transformers again from its configuration: its constructor takes nothing else."""
    module = candidate.module.module
    kind, config = type(module), own(module, "config")
    if "RotaryEmbedding" not in kind.__name__ or not kind.__module__.startswith("transformers.") or config is None:
        return {}
    built = kind(config)
    buffers = registry(built, "_buffers").items()
    return {text(key): _Answer(f"{kind.__name__}(config)", (value,)) for key, value in buffers if value is not None}


def _rotary_alternatives(module: Any, name: str) -> Iterator[Any]:
    """What frequencies may have become in use: dynamic scaling follows the longest sequence, longrope has two sets."""
    prefix = name.removesuffix("inv_freq")
    config = own(module, "config")
    if prefix == name or prefix.endswith("original_") or config is None:
        return
    layer = prefix.removesuffix("_") or None
    kind = own(module, "rope_type")
    kind = kind.get(layer) if isinstance(kind, Mapping) else kind
    if kind not in ("dynamic", "longrope"):
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind == "dynamic":
        length = own(module, f"{prefix}max_seq_len_cached") or own(module, "max_seq_len_cached")
    else:
        parameters = config.rope_parameters if layer is None else config.rope_parameters[layer]
        length = parameters["original_max_position_embeddings"] + 1
    given = {} if layer is None else {"layer_type": layer}
    yield ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=int(length), **given)[0]


def _judged(candidate: _Item, answer: _Answer) -> DerivedBuffer:
    outcomes = [difference(candidate.buffer, value) for value in answer.values]
    status, error, detail = min(outcomes, key=lambda outcome: (_ORDER[outcome[0]], outcome[1] or 0.0))
    return DerivedBuffer(fqn=candidate.fqn, recipe=answer.recipe, status=status, error=error, detail=detail)


_ORDER = {"equal": 0, "low-precision": 1, "wrong": 2}


def difference(live: Any, wanted: Any) -> tuple[str, float | None, str]:
    """How a buffer compares with what it should hold: status, largest relative error of an element, what differs."""
    import torch

    live = live.detach().cpu()
    if live.shape != wanted.shape:
        return "wrong", None, f"shape {list(live.shape)}, expected {list(wanted.shape)}"
    if not live.dtype.is_floating_point:
        different = int((live != wanted.to(live.dtype)).sum())
        return ("wrong", None, f"{different} of {live.numel()} elements differ") if different else ("equal", 0.0, "")
    error = _relative(live.double(), wanted.double())
    if error is None:
        return "wrong", None, "it is not finite where it should be"
    if error <= EQUAL_BELOW:
        return "equal", error, ""
    narrow = (live.dtype,) if live.element_size() < 4 else (torch.bfloat16, torch.float16)
    for dtype in narrow:
        rounded = _relative(live.double(), wanted.to(dtype).double())
        if rounded is not None and rounded <= WRONG_ABOVE:
            return "low-precision", error, f"rounded to {str(dtype).removeprefix('torch.')}"
    return ("low-precision" if error <= WRONG_ABOVE else "wrong"), error, ""


def _relative(live: Any, wanted: Any) -> float | None:
    """The largest relative error; None when one is finite and the other is not. Equal infinities are not an error."""
    import torch

    finite = torch.isfinite(wanted)
    if not bool((torch.isfinite(live) == finite).all()) or not bool((live == wanted)[~finite].all()):
        return None
    live, wanted = live[finite], wanted[finite]
    if not wanted.numel():
        return 0.0
    floor = float(wanted.abs().max()) * 1e-12
    return float(((live - wanted).abs() / wanted.abs().clamp(min=max(floor, 1e-300))).max())
