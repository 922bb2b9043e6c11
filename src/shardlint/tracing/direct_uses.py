"""Notice torch functions that are given a sharded parameter itself, past the forward that would gather it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..facts import DirectUse
from .recorder import Recorder, graph_task

_HARMLESS = frozenset(
    (
        "__get__",
        "__set__",
        "__hash__",
        "__repr__",
        "__format__",
        "__len__",
        "size",
        "dim",
        "numel",
        "nelement",
        "stride",
        "storage_offset",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
        "untyped_storage",
        "data_ptr",
        "element_size",
        "get_device",
        "requires_grad_",
        "register_hook",
        "register_post_accumulate_grad_hook",
    )
)
_VIEWS = frozenset(("T", "mT", "H", "mH", "data", "real", "imag"))
"""Properties that give the values of a tensor; all others only describe it."""

_OUTSIDE_THE_GRAPH = frozenset(("data", "detach"))
"""Views without a graph: a use only within a forward, because elsewhere they are logged, saved or compared."""

_FRAMEWORK = ("/torch/distributed/", "/torch/_dynamo/", "/torch/optim/")


def use_mode(recorder: Recorder, sharded: dict[int, tuple[str, str]]) -> Any:
    """
    Return a `TorchFunctionMode` that writes direct uses down.

    `sharded` gives unit and name of each sharded parameter by its id. Uses without gradients (optimizers, saving,
    initialising) and those of the framework itself are not meant.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Uses(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for arg in args:
                if id(arg) in sharded and not recorder.gathering:
                    name = _called(func)
                    if _is_use(name, within=recorder.in_forward) and torch.is_grad_enabled() and graph_task() == -1:
                        _write_down(recorder, sharded[id(arg)], name)
            return func(*args, **(kwargs or {}))

    return Uses()


def _called(function: Any) -> str:
    """The name of a function; of a property that is read, that of the property when it gives values."""
    name = str(getattr(function, "__name__", ""))
    if name == "__get__":
        read = str(getattr(getattr(function, "__self__", None), "__name__", ""))
        return read if read in _VIEWS else name
    return name


def _is_use(name: str, *, within: bool) -> bool:
    if name in _OUTSIDE_THE_GRAPH:
        return within
    return name not in _HARMLESS


def _write_down(recorder: Recorder, place: tuple[str, str], function: str) -> None:
    frame: FrameType | None = sys._getframe(3)
    if frame is None or any(part in frame.f_code.co_filename for part in _FRAMEWORK):
        return
    while frame is not None and "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else ""
    unit, parameter = place
    use = DirectUse(unit=unit, parameter=parameter, function=function, where=where)
    recorder.direct_uses.setdefault(place, use)
