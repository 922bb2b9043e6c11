"""Reading live objects that may be hostile: attributes, types, signatures. Nothing here raises."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Iterator
from typing import Any

from .importing import public_module
from .plain import encodable

_MISSING = object()
_SHARDED_CLASS_PREFIXES = {"FSDPModule": "FSDP", "ReplicateModule": "Replicate"}
_SIMPLE = (type(None), bool, int, float, str)


def read(source: Any, name: str, default: Any = None) -> Any:
    """`getattr` that returns `default` whatever a property or `__getattr__` raises."""
    try:
        return getattr(source, name, default)
    except Exception:  # user code
        return default


def own(module: Any, name: str, default: Any = None) -> Any:
    """
    The attribute of the module itself, never one that `__getattr__` borrows from elsewhere.

    Looks into the instance's `__dict__`, its child modules, then its classes; a property is read, guarded.
    """
    try:
        values = object.__getattribute__(module, "__dict__")
    except AttributeError:
        values = {}
    if name in values:
        return values[name]
    children = values.get("_modules")
    if isinstance(children, dict) and children.get(name) is not None:
        return children[name]
    value = class_attribute(type(module), name, _MISSING)
    if value is _MISSING:
        return default
    return read(module, name, default) if hasattr(type(value), "__get__") else value


def class_attribute(kind: type, name: str, default: Any = None) -> Any:
    """The attribute as a class of the MRO defines it, without binding it."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return default


def author_type(kind: type) -> type:
    """The class as its author wrote it: below the classes that `fully_shard` and `replicate` derive on the fly."""
    for base in kind.__mro__[1:]:
        prefix = _SHARDED_CLASS_PREFIXES.get(base.__name__)
        if prefix is None:
            continue
        for original in kind.__mro__[1:]:
            if kind.__name__ == f"{prefix}{original.__name__}":
                return original
    return kind


def qualified(kind: type) -> str:
    """`package.module.Class` of the class as its author wrote it."""
    kind = author_type(kind)
    return encodable(f"{public_module(kind.__module__)}.{kind.__qualname__}")


def signature_text(function: Any, *, skip_self: bool) -> str:
    """
    The parameters of `function` as text, the same in every process: no annotations, no defaults but simple ones.

    `(...)` when it has no readable signature.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except Exception:  # ValueError for built-ins, anything for objects with their own __signature__
        return "(...)"
    if skip_self and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    return str(inspect.Signature([_shown(parameter) for parameter in parameters]))


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if default is not inspect.Parameter.empty and type(default) not in _SIMPLE:
        default = _Dots()
    return parameter.replace(annotation=inspect.Parameter.empty, default=default)


class _Dots:
    def __repr__(self) -> str:
        return "..."


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector: a hundred thousand new small objects would start it over and over."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
