"""
Buffers that follow from the configuration, computed again and compared.

Recipes, tried in turn: what the module itself promises (`_hp_rebuildable_buffer_specs`), the initialiser of the
enclosing Transformers model, which writes every buffer that no checkpoint stores, and the module's constructor. They
run on a copy of the module whose buffers are new and whose parameters are on meta, or make a new one, so that nothing
of the model can be written; random numbers that they draw are put back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from ..facts import DerivedBuffer
from ..introspect.attributes import author_type, own, read
from ..introspect.plain import encodable
from ..introspect.walk import Walk, WalkedModule, text
from ..introspect.wrappers import registry
from ..names import joined
from .blank_copy import NoCopyError, blank_copy
from .declarations import REBUILDABLE_SPECS, registry_set
from .invariants import random_states_kept
from .live_tensors import is_tensor
from .rebuilt import NoRecipeError, Rebuilding

LARGEST = 2**23  # elements of one buffer
BUDGET = 2**26  # elements of all buffers

EQUAL_BELOW = 1e-4
WRONG_ABOVE = 1e-2
_ABSURD = 1e8


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
    """What a recipe gives for one buffer: alternatives of which any is right. `guessed` says what is not certain."""

    recipe: str
    values: tuple[Any, ...]
    guessed: str = ""


def derived_buffers(walk: Walk) -> tuple[DerivedBuffer, ...]:
    """Compare every buffer that is stored in no checkpoint with what can be computed again."""
    import torch

    budget = BUDGET
    judged: list[DerivedBuffer] = []
    rebuilding = Rebuilding()
    with torch.no_grad(), torch.device("cpu"), random_states_kept():
        for items in _by_module(walk).values():
            looked_at = [candidate for candidate in items if not _unreadable(candidate.buffer)]
            judged += [_unknown(item, why) for item in items if (why := _unreadable(item.buffer))]
            budget -= sum(candidate.buffer.numel() for candidate in looked_at)
            if budget < 0:
                judged += [_unknown(item, "too many elements in all derived buffers together") for item in looked_at]
            elif looked_at:
                judged += _compared(looked_at, rebuilding)
    return tuple(judged)


def _by_module(walk: Walk) -> dict[int, list[_Item]]:
    models = initialising_models(walk)
    seen: set[int] = set()
    grouped: dict[int, list[_Item]] = {}
    for module in walk.modules:
        hidden = registry_set(module.module, "_non_persistent_buffers_set")
        for key, buffer in registry(module.module, "_buffers").items():
            name, promised = text(key), key in registry(module.module, REBUILDABLE_SPECS)
            if (key in hidden or promised) and _has_values(buffer) and id(buffer) not in seen:
                seen.add(id(buffer))
                candidate = _Item(module, name, joined(module.fqn, name), enclosing(models, module.fqn), buffer)
                grouped.setdefault(id(module.module), []).append(candidate)
    return grouped


def initialising_models(walk: Walk) -> dict[str, Any]:
    """The models of Transformers among the modules, by name: those that initialise what is in them."""
    return {walked.fqn: walked.module for walked in walk.modules if _initialises(walked.module)}


def _initialises(module: Any) -> bool:
    return any(base.__name__ == "PreTrainedModel" for base in type(module).__mro__)


def enclosing(models: Mapping[str, Any], fqn: str) -> Any:
    """The innermost model around (or at) the module."""
    parts = fqn.split(".") if fqn else []
    for length in range(len(parts), -1, -1):
        model = models.get(".".join(parts[:length]))
        if model is not None:
            return model
    return None


def _has_values(buffer: Any) -> bool:
    """Whether a buffer is a tensor with elements that is not on meta (which D401 reports)."""
    return is_tensor(buffer) and not read(buffer, "is_meta", False) and bool(buffer.numel())


def _unreadable(buffer: Any) -> str:
    """Why a buffer cannot be compared; empty when it can."""
    if buffer.numel() > LARGEST:
        return f"it has more than {LARGEST:,} elements"
    return "" if readable(buffer) else f"a {type(buffer).__name__} of {buffer.dtype} is not compared"


def readable(buffer: Any) -> bool:
    """Whether a buffer is a plain tensor whose values can be compared, and not too large."""
    return (
        type(buffer).__name__ in ("Tensor", "Buffer")
        and not read(buffer, "is_meta", True)
        and 0 < buffer.numel() <= LARGEST
        and str(read(buffer, "layout")) == "torch.strided"
        and not buffer.is_quantized
    )


def _compared(items: list[_Item], rebuilding: Rebuilding) -> Iterator[DerivedBuffer]:
    answers, reason = _answers(items, rebuilding)
    for candidate in items:
        answer = answers.get(candidate.name)
        if answer is None:
            yield _unknown(candidate, reason)
            continue
        found = _judged(candidate, answer)
        if found.status == "wrong" and _may_change(answer.values[0]):
            detail = "it begins as a constant, as counters and caches do"
            yield evolve(found, status="changing", error=None, detail=detail)
        elif found.status == "wrong" and answer.guessed and not _garbage(candidate.buffer, answer.values[0]):
            yield _unknown(candidate, answer.guessed)
        else:
            yield found


def _may_change(value: Any) -> bool:
    """Whether a buffer that begins so may rightly hold something else later: a counter, a cache, a running mean."""
    if value.ndim == 0:
        return not value.dtype.is_floating_point or float(value) in (0.0, 1.0)
    first = value.reshape(-1)[0]
    if not bool((value == first).all()):
        return False
    return value.numel() > 1 or bool(first == 0)


def _garbage(live: Any, wanted: Any) -> bool:
    """Whether a buffer holds what no arguments of a constructor give in place of numbers that differ."""
    import torch

    live, wanted = live.detach().cpu(), wanted.cpu()
    if live.shape != wanted.shape or not (live.is_floating_point() or live.is_complex()):
        return False
    if not bool(torch.isfinite(live).all()):
        return bool(torch.isfinite(wanted).all())
    constant = live.numel() > 1 and bool((live == live.reshape(-1)[0]).all())
    return constant or float(live.abs().max()) > _ABSURD * max(float(wanted.abs().max()), 1.0)


def _unknown(candidate: _Item, detail: str) -> DerivedBuffer:
    falls = _falls(candidate.buffer) if candidate.name.endswith("inv_freq") and readable(candidate.buffer) else None
    return DerivedBuffer(fqn=candidate.fqn, recipe="", status="unknown", detail=detail, falls=falls)


def _falls(buffer: Any) -> bool | None:
    """Whether numbers are positive and none is larger than the one before, as the frequencies of positions are."""
    import torch

    if buffer.ndim != 1 or not buffer.dtype.is_floating_point:
        return None
    values = buffer.detach().float().cpu()
    if not bool(torch.isfinite(values).all()) or not bool((values >= 0).all()) or not bool(values[0] > 0):
        return False
    return bool((values[1:] <= values[:-1]).all()) and (values.numel() == 1 or bool(values[0] > values[-1]))


def _answers(items: list[_Item], rebuilding: Rebuilding) -> tuple[dict[str, _Answer], str]:
    """What the recipes give for the buffers of one module, and why there is nothing for the others."""
    module = items[0].module.module
    wanted = {candidate.name for candidate in items}
    recipes: tuple[Callable[[], Iterable[tuple[str, _Answer]]], ...] = (
        lambda: _promised(module, wanted),
        lambda: _initialised(items[0]).items(),
        lambda: _constructed(items[0]).items(),
        lambda: _rebuilt(items[0], rebuilding),
    )
    answers: dict[str, _Answer] = {}
    reasons = []
    for recipe in recipes:
        if wanted <= set(answers):
            break
        try:
            answers |= {name: answer for name, answer in recipe() if name in wanted and name not in answers}
        except NoRecipeError as error:
            reasons.append(str(error))
        except (Exception, SystemExit) as error:  # the recipes are code of the model
            reasons.append(encodable(f"computing it again raised {type(error).__name__}: {error}")[:300])
    for name, answer in answers.items():
        answers[name] = evolve(answer, values=(*answer.values, *_rotary_alternatives(module, name)))
    return answers, next(iter(reasons), "no recipe computes it")


def _rebuilt(candidate: _Item, rebuilding: Rebuilding) -> Iterator[tuple[str, _Answer]]:
    """What the constructor gives, with the arguments that the module keeps."""
    module = candidate.module.module
    again = rebuilding.of(module, own(candidate.model, "config"))
    kind = author_type(type(module)).__name__
    guessed = f"no recipe: nobody knows what {kind} was built with ({', '.join(again.guessed[:3])})"
    for name, value in again.buffers.items():
        yield name, _Answer(f"{kind}()", (value,), guessed if again.guessed else "")


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
    return factory(_copy_or_none(module)) if len(needed) == 1 else factory()


def _copy_or_none(module: Any) -> Any:
    try:
        return blank_copy(module)
    except NoCopyError:
        return None


def _initialised(candidate: _Item) -> dict[str, _Answer]:
    """Let the enclosing model initialise a copy of the module, twice: what differs is random or was not written."""
    import torch

    if candidate.model is None:
        return {}
    results = []
    for second in (False, True):
        torch.default_generator.manual_seed(int(second))
        try:
            copy = blank_copy(candidate.module.module, second=second)
        except NoCopyError:
            return {}
        candidate.model._init_weights(copy)
        results.append(dict(copy._buffers))
    answers = {}
    for name, value in results[0].items():
        if value is not None and _written(value) and torch.equal(value, results[1][name]):
            answers[text(name)] = _Answer(f"{type(candidate.model).__name__}._init_weights", (value,))
    return answers


def _written(value: Any) -> bool:
    """Whether nothing is left of the first sentinel in a buffer that has come out the same from both of them."""
    import torch

    return not value.is_meta and not bool(torch.isnan(value).any())


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

    if kind == "dynamic":  # releases up to 5.8 note what a sequence grew to under the name of no layer
        names = (f"{prefix}max_seq_len_cached", "max_seq_len_cached", f"{layer}_max_seq_len_cached")
        lengths = {int(length) for name in names if (length := own(module, name))}
    else:
        lengths = {_original_length(config, layer) + 1}
    given = {} if layer is None else {"layer_type": layer}
    for length in sorted(lengths):
        yield ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=length, **given)[0]


def _original_length(config: Any, layer: str | None) -> int:
    """The longest sequence of the first of longrope's two sets: in the rope's own settings, or in the configuration."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    settings = settings if layer is None else settings[layer]
    name = "original_max_position_embeddings"
    return int(settings.get(name) or getattr(config, name))


def _judged(candidate: _Item, answer: _Answer) -> DerivedBuffer:
    outcomes = [difference(candidate.buffer, value) for value in answer.values]
    status, error, detail = min(outcomes, key=lambda outcome: (_ORDER[outcome[0]], outcome[1] or 0.0))
    return DerivedBuffer(fqn=candidate.fqn, recipe=answer.recipe, status=status, error=error, detail=detail)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ORDER = {"equal": 0, "low-precision": 1, "wrong": 2}


def difference(live: Any, wanted: Any) -> tuple[str, float | None, str]:
    """How a buffer compares with what it should hold: status, largest relative error of an element, what differs."""
    import torch

    live, wanted = live.detach().cpu(), wanted.detach().cpu()
    if live.shape != wanted.shape:
        return "wrong", None, f"shape {list(live.shape)}, expected {list(wanted.shape)}"
    if not (live.dtype.is_floating_point or live.dtype.is_complex):
        different = int((live != wanted.to(live.dtype)).sum())
        return ("wrong", None, f"{different} of {live.numel()} elements differ") if different else ("equal", 0.0, "")
    wide = torch.complex128 if live.dtype.is_complex or wanted.dtype.is_complex else torch.float64
    error = _relative(live.to(wide), wanted.to(wide))
    if error is None:
        return "wrong", None, "it is not finite where it should be"
    if error <= EQUAL_BELOW:
        return "equal", error, ""
    narrow = (live.dtype,) if live.element_size() < 4 else (torch.bfloat16, torch.float16)
    for dtype in narrow if wide is torch.float64 else ():
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
