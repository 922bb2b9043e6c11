"""
Calling a module's constructor once more, to see what its buffers begin as.

The arguments are those that the module keeps under their names, and defaults. Whether a default was what the caller
gave, nobody knows: the answer is then a guess, good for telling that a buffer is right, and hardly that it is wrong.
Matrices that are only allocated or drawn go to the meta device, so that a large module costs little.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from ..introspect.attributes import author_type, class_attribute, own, read
from ..introspect.walk import text
from ..introspect.wrappers import registry

_SMALL = 2**14  # elements of what is allocated in memory all the same
_NO_MATTER = ("device", "dtype")
_PLAIN = (bool, int, float, str, type(None))
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class NoRecipeError(Exception):
    """The constructor cannot be called. The text says why."""


@frozen
class Rebuilt:
    """The buffers of a module that was built again, by name; `guessed` names what is not certain to be the same."""

    buffers: dict[str, Any]
    guessed: tuple[str, ...] = ()


class Rebuilding:
    """Builds modules again, those with the same arguments once."""

    def __init__(self) -> None:
        self.built: dict[Any, tuple[Any, dict[str, Any]]] = {}

    def of(self, module: Any, config: Any = None) -> Rebuilt:
        """
        Build the module again, twice: what differs is random or was never written. `config` is that of the model
        around it, for a module that takes one and does not keep it.

        Raises `NoRecipeError` when its arguments are not known or nothing should be built, and whatever the
        constructor raises.
        """
        kind = author_type(type(module))
        if _constructor(kind) is _constructor(_module_class()):
            raise NoRecipeError("its class has no constructor of its own")
        if _several_ranks() and (registry(module, "_modules") or registry(module, "_parameters")):
            raise NoRecipeError("its constructor is not called in a job of several ranks")
        arguments, guessed = _arguments(kind, module, config)
        key = _key(kind, arguments)
        if key is None or key not in self.built:
            result = _built(kind, arguments)
            if key is not None:
                self.built[key] = result
        else:
            result = self.built[key]
        attributes, buffers = result
        return Rebuilt(buffers, (*guessed, *_changed(module, attributes)))


def _constructor(kind: type) -> Any:
    return class_attribute(kind, "__init__")


def _module_class() -> type:
    import torch

    return torch.nn.Module


def _several_ranks() -> bool:
    """Constructors may create groups of ranks, which all ranks have to do together."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


def _arguments(kind: type, module: Any, config: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the constructor takes, as far as the module keeps it, and the names of what is only a default."""
    arguments: dict[str, Any] = {}
    guessed = []
    for parameter in list(inspect.signature(_constructor(kind)).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kept = _kept(module, parameter.name)
        if kept is not _ABSENT:
            arguments[parameter.name] = kept
        elif parameter.name == "config" and config is not None:
            arguments["config"] = config
            guessed.append("config")
        elif parameter.default is parameter.empty:
            raise NoRecipeError(f"no recipe: its module does not keep {parameter.name}, which its constructor takes")
        elif parameter.name not in _NO_MATTER:
            guessed.append(parameter.name)
        if parameter.name in arguments and parameter.kind is parameter.POSITIONAL_ONLY:
            raise NoRecipeError("no recipe: its constructor takes arguments without names")
    return arguments, tuple(guessed)


_ABSENT = object()


def _kept(module: Any, name: str) -> Any:
    """The argument as the module keeps it: a plain value, or an object that holds no tensor, as configurations do."""
    import torch

    value = own(module, name, _ABSENT)
    if value is _ABSENT or callable(value) or isinstance(value, (torch.Tensor, torch.nn.Module)):
        return _ABSENT
    return value


def _key(kind: type, arguments: dict[str, Any]) -> Any:
    """What tells calls apart; None when that cannot be told."""
    parts = tuple((name, _known(value)) for name, value in sorted(arguments.items()))
    try:
        hash(parts)
    except TypeError:
        return None
    return kind, parts


def _known(value: Any) -> Any:
    return (type(value), value) if isinstance(value, _PLAIN) else id(value)


def _built(kind: type, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The plain attributes and the buffers of a new module."""
    import torch

    results = []
    for second in (False, True):
        torch.default_generator.manual_seed(int(second))
        with _quiet(), _allocated_on_meta(second):
            built = kind(**arguments)
        results.append({text(name): value for name, value in registry(built, "_buffers").items()})
        attributes = {name: value for name, value in vars(built).items() if _tells(name, value)}
    first, other = results
    return attributes, {name: value for name, value in first.items() if _fixed(value, other.get(name))}


def _tells(name: str, value: Any) -> bool:
    return not name.startswith("_") and name != "training" and isinstance(value, _PLAIN)


def _fixed(value: Any, again: Any) -> bool:
    """Whether a buffer has values, and the same ones each time."""
    import torch

    if value is None or again is None or value.is_meta or again.is_meta or value.shape != again.shape:
        return False
    return bool(torch.equal(value, again)) and not (
        (value.is_floating_point() or value.is_complex()) and bool(torch.isnan(value).any())
    )


def _changed(module: Any, attributes: dict[str, Any]) -> Iterator[str]:
    """Plain attributes that the module has otherwise than the new one."""
    values = read(module, "__dict__", {})
    for name, value in attributes.items():
        if name not in values or not isinstance(values[name], _PLAIN) or values[name] != value:
            yield name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _allocated_on_meta(second: bool) -> Any:
    """A mode in which memory that is only allocated or filled with random numbers is not there."""
    import torch
    from torch.overrides import TorchFunctionMode

    from .blank_copy import sentinel

    drawn = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.rand_like, torch.randn_like}

    class _OnMeta(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            if function in drawn:
                options["device"] = "meta"
            if function is not torch.empty:
                return function(*args, **options)
            made = function(*args, **{**options, "device": "meta"})
            if made.numel() > _SMALL:
                return made
            return torch.full(made.shape, sentinel(made.dtype, second), dtype=made.dtype, device="cpu")

    return _OnMeta()
