"""What results depend on and no model says: plain settings of modules, switches of torch, and the environment."""

from __future__ import annotations

import functools
import os
import sys
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ..facts import EMPTY, FrozenDict
from ..introspect.plain import encodable

_PLAIN = (float, bool)
_CONSTANTS = (int, float, bool, str)
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_OF_A_PLACE = ("rank", "stage", "first", "last", "device", "local", "main_process", "shard")
"""Parts of names of attributes that tell where a module is, and not how it computes."""

_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "XLA_USE_BF16",
)
_SWITCHES = (
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.deterministic",
    "backends.mkldnn.allow_tf32",
)
_QUESTIONS = ("get_default_dtype", "get_float32_matmul_precision", "are_deterministic_algorithms_enabled")


def module_settings(kind: type, values: dict[str, Any]) -> FrozenDict:
    """
    The attributes of a module, given as its `__dict__`, that results may depend on.

    Of torch's own modules the constants that they declare; of others fractions, switches and functions. Whole numbers
    and texts of foreign modules are left out: they number ranks and name places.
    """
    constants = _constants(kind)
    settings: dict[str, Any] = {}
    for name, value in values.items():
        kind_of_value = type(value)
        if kind_of_value in _PLAIN or (name in constants and kind_of_value in _CONSTANTS):
            if _may_change_results(name):
                settings[name] = value
        elif kind_of_value in _FUNCTIONS and _may_change_results(name, of_a_place=False):
            settings[name] = encodable(f"{value.__module__}.{value.__qualname__}")
    return FrozenDict(settings) if settings else EMPTY


@functools.cache
def _constants(kind: type) -> frozenset[str]:
    return frozenset(vars(kind).get("__constants__", ()) if kind.__module__.startswith("torch.nn") else ())


@functools.lru_cache(maxsize=4096)
def _may_change_results(name: str, *, of_a_place: bool = True) -> bool:
    if name.startswith("_") or name == "training":
        return False
    return not of_a_place or not any(part in name for part in _OF_A_PLACE)


def numeric_environment() -> FrozenDict:
    """The switches of torch and the variables of the environment that change results; what is not set is left out."""
    settings: dict[str, Any] = {name: encodable(os.environ[name]) for name in _VARIABLES if name in os.environ}
    torch = sys.modules.get("torch")
    if torch is None:
        return FrozenDict(settings)
    for name in _QUESTIONS:
        question = getattr(torch, name, None)
        if callable(question):
            settings[f"torch.{name}()"] = _plain(question)
    for name in _SWITCHES:
        value = _switch(torch, name)
        if isinstance(value, bool):
            settings[f"torch.{name}"] = value
    return FrozenDict(settings)


def _plain(question: Any) -> str | bool:
    try:
        value = question()
    except Exception as error:  # a switch of another version
        return type(error).__name__
    return value if isinstance(value, bool) else str(value)


def _switch(torch: Any, name: str) -> Any:
    value = torch
    try:
        for part in name.split("."):
            value = getattr(value, part)
    except Exception:  # a switch of another version
        return None
    return value


def in_job() -> bool:
    """Whether this process is one of several ranks."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_world_size() > 1)
    return os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")
