"""Process groups and classes, told without importing what may not be there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from ...introspect.versioned import UNKNOWN

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")


def ranks_of(group: Any) -> tuple[int, ...] | None:
    """The global ranks of a process group; None when there is none or it does not say."""
    if group is None or group is UNKNOWN:
        return None
    distributed = sys.modules.get("torch.distributed")
    try:
        return tuple(distributed.get_process_group_ranks(group)) if distributed is not None else None
    except Exception:  # a destroyed group, a stand-in
        return None


def asked_once(question: Callable[[_Key], _Answer]) -> Callable[[_Key], _Answer]:
    """Ask `question` once for every class (or function): a model has many modules and few classes."""
    answers: dict[_Key, _Answer] = {}

    @functools.wraps(question)
    def ask(key: _Key) -> _Answer:
        if key not in answers:
            answers[key] = question(key)
        return answers[key]

    return ask


def has_base(kind: type, name: str, package: str = "torch") -> bool:
    """Whether the class or one of its bases is called `name` and comes from `package`."""
    return any(base.__name__ == name and base.__module__.partition(".")[0] == package for base in kind.__mro__)
