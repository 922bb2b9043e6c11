"""
Handlers of element-wise operations: casts, bit views, arithmetic with scalars, and lazy arithmetic of two weights.

None of them is computed here. Scalar operations become steps of the blocks; an operation on two symbolic tensors
(dequantisation: weight times scale) becomes a lazy node that evaluation computes tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import blocks as b
from .radix import Untrackable
from .tensor import HANDLERS, Node, SymbolicTensor, handles, like, need

UNARY = ("neg", "exp", "exp2", "log", "abs", "sqrt", "rsqrt", "reciprocal")
BINARY = {
    "mul": ("mul", "__mul__", "__rmul__", "multiply"),
    "add": ("add", "__add__", "__radd__"),
    "sub": ("sub", "__sub__", "subtract"),
    "div": ("div", "__truediv__", "true_divide", "divide"),
    "pow": ("pow", "__pow__"),
    "rsub": ("rsub", "__rsub__"),
    "rdiv": ("__rtruediv__", "__rdiv__"),
}
BITWISE = {
    "bitwise_and": ("__and__", "bitwise_and"),
    "bitwise_or": ("__or__", "bitwise_or"),
    "bitwise_right_shift": ("__rshift__", "bitwise_right_shift"),
    "bitwise_left_shift": ("__lshift__", "bitwise_left_shift"),
}
CASTS = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "long": torch.int64,
    "int": torch.int32,
}


def cast(tensor: SymbolicTensor, dtype: torch.dtype | None) -> SymbolicTensor:
    """The values converted to another dtype, as `Tensor.to` does."""
    if dtype is None or dtype == tensor.dtype:
        return tensor
    return like(tensor, b.with_step(tensor.blocks, ("cast", dtype)), dtype=dtype)


def viewed(tensor: SymbolicTensor, dtype: torch.dtype) -> SymbolicTensor:
    """The same bits read as another dtype of the same size."""
    if dtype.itemsize != tensor.dtype.itemsize:
        raise Untrackable(f"view() from {tensor.dtype} to {dtype}, which changes the element size")
    return like(tensor, b.with_step(tensor.blocks, ("view", dtype)), dtype=dtype)


@handles("to", "type", "type_as")
def to(tensor: SymbolicTensor, *args: Any, **named: Any) -> SymbolicTensor:
    """Another dtype; devices do not matter."""
    dtype = named.get("dtype")
    for value in args:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, torch.Tensor):
            dtype = value.dtype
    return cast(tensor, dtype)


def _cast_to(dtype: torch.dtype) -> Callable[..., SymbolicTensor]:
    return lambda tensor, *_, **__: cast(tensor, dtype)


def looked_up(table: torch.Tensor, codes: Any) -> SymbolicTensor:
    """`table[codes]` for a real one-dimensional table and symbolic codes."""
    if not isinstance(codes, SymbolicTensor) or table.dim() != 1:
        raise Untrackable("indexing a real tensor by a weight")
    return like(codes, b.with_step(codes.blocks, ("table", table)), dtype=table.dtype)


def elementwise(function: Callable[..., torch.Tensor], *tensors: SymbolicTensor) -> SymbolicTensor:
    """A lazy node: `function` of tensors that are broadcast to one shape."""
    shape: torch.Size = torch.broadcast_shapes(*(tuple(item.shape) for item in tensors))  # type: ignore[no-untyped-call]
    probe = function(*(torch.empty(1, dtype=tensor.dtype) for tensor in tensors))
    expand = HANDLERS["expand"]
    node = Node(function, [expand(tensor, shape) for tensor in tensors], shape, probe.dtype)
    return SymbolicTensor.leaf(node, shape, probe.dtype)


def _binary(kind: str) -> Callable[..., SymbolicTensor]:
    def handler(left: Any, right: Any = None, *args: Any, **named: Any) -> SymbolicTensor:
        if args or any(value is not None for key, value in named.items() if key != "out"):
            raise Untrackable(f"{kind}() with extra arguments")
        if isinstance(left, SymbolicTensor) and isinstance(right, SymbolicTensor):
            if kind in ("rsub", "rdiv"):
                left, right = right, left
            return elementwise(getattr(torch, kind.removeprefix("r")), left, right)
        tensor, scalar, step = left, right, kind
        if not isinstance(left, SymbolicTensor):
            tensor, scalar = need(right), left
            step = f"r{kind}" if kind in ("sub", "div", "pow") else kind
        if not isinstance(scalar, (int, float)):
            raise Untrackable(f"{kind}() of a weight and a {type(scalar).__name__}: arithmetic, not a rearrangement")
        if not tensor.dtype.is_floating_point:
            raise Untrackable(f"{kind}() on an integer weight")
        return like(tensor, b.with_step(tensor.blocks, (step, scalar)))

    return handler


def _unary(kind: str) -> Callable[..., SymbolicTensor]:
    def handler(tensor: Any, *args: Any, **named: Any) -> SymbolicTensor:
        if args or named:
            raise Untrackable(f"{kind}() with extra arguments")
        return like(tensor, b.with_step(need(tensor).blocks, (kind, None)))

    return handler


def _bitwise(kind: str) -> Callable[..., SymbolicTensor]:
    def handler(tensor: Any, other: Any) -> SymbolicTensor:
        if not isinstance(other, int):
            raise Untrackable(f"{kind}() of two tensors")
        return like(tensor, b.with_step(need(tensor).blocks, (kind, other)))

    return handler


for _name, _dtype in CASTS.items():
    HANDLERS[_name] = _cast_to(_dtype)
for _kind, _names in BINARY.items():
    HANDLERS.update(dict.fromkeys(_names, _binary(_kind)))
for _kind, _names in BITWISE.items():
    HANDLERS.update(dict.fromkeys(_names, _bitwise(_kind)))
HANDLERS.update({_kind: _unary(_kind) for _kind in UNARY}, __neg__=_unary("neg"))


def apply_steps(values: torch.Tensor, steps: tuple[b.Step, ...]) -> torch.Tensor:
    """Compute the steps on real values."""
    for kind, argument in steps:
        if kind == "cast":
            values = values.to(argument)
        elif kind == "view":
            values = values.contiguous().view(argument)
        elif kind == "table":
            values = argument[values.long()]
        elif kind in ("rsub", "rdiv", "rpow"):
            values = _reversed(kind, values, argument)
        elif argument is None:
            values = getattr(torch, kind)(values)
        else:
            values = getattr(torch, kind)(values, argument)
    return values


def _reversed(kind: str, values: torch.Tensor, scalar: float) -> torch.Tensor:
    if kind == "rsub":
        return scalar - values
    return scalar / values if kind == "rdiv" else torch.pow(scalar, values)
