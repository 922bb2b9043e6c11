"""Globs over the names of classes."""

from __future__ import annotations

from ..names import glob_matches
from .importing import public_module

_ROOTS = ("builtins", "torch.nn.modules.module")


def type_names(kind: type) -> tuple[str, ...]:
    """Every name by which a glob may mean the class: bare and qualified, its own and those of its bases."""
    bases = [base for base in kind.__mro__ if base.__module__ not in _ROOTS]
    return tuple(name for base in bases for name in (base.__name__, _qualified(base)))


def _qualified(kind: type) -> str:
    return f"{public_module(kind.__module__)}.{kind.__qualname__}"


def matches_type(pattern: str, kind: type) -> bool:
    """
    Whether the glob (`shardlint.names.compile_glob`) names the class or one of its bases; `*` covers every class.

    A glob without a dot is about the bare name, `acme.**.Stub` about the qualified one.
    """
    return pattern == "*" or any(glob_matches(pattern, name) for name in type_names(kind))
