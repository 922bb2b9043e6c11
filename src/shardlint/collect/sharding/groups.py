"""Process groups and classes, told without importing what may not be there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from .guarded import UNKNOWN

_Answer = TypeVar("_Answer")


def ranks_of(group: Any) -> tuple[int, ...] | None:
    """The global ranks of a process group; None when there is none or it does not tell."""
    if group is None or group is UNKNOWN:
        return None
    distributed = sys.modules.get("torch.distributed")
    try:
        return tuple(distributed.get_process_group_ranks(group)) if distributed is not None else None
    except Exception:  # a destroyed group, a stand-in
        return None


def per_class(question: Callable[[type], _Answer]) -> Callable[[type], _Answer]:
    """Ask `question` once for every class: a model has many modules and few classes."""
    answers: dict[type, _Answer] = {}

    @functools.wraps(question)
    def ask(kind: type) -> _Answer:
        if kind not in answers:
            answers[kind] = question(kind)
        return answers[kind]

    return ask


def has_base(kind: type, name: str, package: str = "torch") -> bool:
    """Whether the class or one of its bases is called `name` and comes from `package`."""
    return any(base.__name__ == name and base.__module__.partition(".")[0] == package for base in kind.__mro__)
