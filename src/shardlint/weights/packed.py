"""
Weights that a quantisation library keeps packed, and what it keeps beside them.

bitsandbytes has scales and maps that `state_dict()` stores and no module registers: here they are the tensors that the
library itself would save, under the names that it gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..introspect.walk import Walk, WalkedModule, WalkedTensor
from ..introspect.wrappers import registry
from ..names import joined
from .compare.bits import INTEGERS
from .compare.live_tensor import Unreadable

_KERNEL_LIBRARIES = ("gptqmodel", "auto_gptq", "awq", "autoawq")
_CODES = ("qweight", "qzeros", "scales", "g_idx")


def is_quantised(tensor: Any) -> bool:
    """Whether a parameter is one of bitsandbytes' that holds packed values."""
    kind = type(tensor).__name__
    if kind == "Params4bit":
        return getattr(tensor, "quant_state", None) is not None
    return kind == "Int8Params" and not getattr(tensor, "has_fp16_weights", False)


def repacked(walk: Walk) -> dict[str, str]:
    """
    Names of codes that a module of GPTQ or AWQ may hold in its kernel's own order, with the reason.

    Modules named for torch compute with the codes as they are stored.
    """
    found: dict[str, str] = {}
    for module in walk.modules:
        kind = type(module.module)
        library = kind.__module__.partition(".")[0]
        if library in _KERNEL_LIBRARIES and "torch" not in kind.__name__.lower() and "qweight" in _own_names(module):
            reason = (
                f"{kind.__name__} of {library} may hold it in its kernel's own order; load it with the torch backend"
            )
            found |= {joined(name, code): reason for name in module.names for code in _CODES}
    return found


def _own_names(item: WalkedModule) -> set[str]:
    return {*registry(item.module, "_parameters"), *registry(item.module, "_buffers")}


def bits_only(tensor: torch.Tensor) -> torch.Tensor:
    """Packed values that are stored as floating-point numbers, as integers: their bits mean something else."""
    return tensor.view(INTEGERS[tensor.dtype.itemsize]) if tensor.dtype.is_floating_point else tensor


def statistics(walk: Walk) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """
    Yield all names and the tensor of every statistic.

    Raises `Unreadable` for a weight that was rearranged for the kernels of a processor: its bits are no longer those
    that are stored.
    """
    for item in walk.tensors:
        if item.kind == "parameter" and is_quantised(item.tensor):
            found = _four_bits(item) if type(item.tensor).__name__ == "Params4bit" else _eight_bits(item, walk)
            for suffix, tensor in found.items():
                yield tuple(f"{name.removesuffix('weight')}{suffix}" for name in item.names), tensor


def _four_bits(item: WalkedTensor) -> dict[str, torch.Tensor]:
    state = item.tensor.quant_state
    if getattr(state, "packing_format_for_cpu", False):
        raise Unreadable(
            f"{item.fqn}: bitsandbytes rearranged it for this processor in its first forward pass; verify before that"
        )
    return {f"weight.{name}": value for name, value in state.as_dict(packed=True).items()}


def _eight_bits(item: WalkedTensor, walk: Walk) -> dict[str, torch.Tensor]:
    scales = getattr(item.tensor, "SCB", None)
    if scales is None:  # after the first forward pass the module's state has them
        owners = (found for found in walk.modules if registry(found.module, "_parameters").get("weight") is item.tensor)
        scales = next((getattr(owner.values.get("state"), "SCB", None) for owner in owners), None)
    return {} if scales is None else {"SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}


def decoded(stored: dict[str, torch.Tensor]) -> torch.Tensor:
    """
    The values of a quantised weight by bitsandbytes' own functions, from its stored tensors by their names.

    Raises `ImportError` when bitsandbytes is not installed.
    """
    from bitsandbytes.functional import QuantState, dequantize_4bit, int8_vectorwise_dequant

    weight = stored.pop("weight")
    if "SCB" in stored:
        values: torch.Tensor = int8_vectorwise_dequant(weight, stored["SCB"])
    else:
        values = dequantize_4bit(weight, QuantState.from_dict(stored, device=weight.device))
    return values
