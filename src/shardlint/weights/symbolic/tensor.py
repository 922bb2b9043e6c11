"""
SymbolicTensor: a `torch.Tensor` without values that knows, for every element, which source element it came from.

It is a wrapper subclass because conversion code asks `isinstance(x, torch.Tensor)`. Python-level operations go
through `__torch_function__` to a table of handlers; whatever is not in the table is refused by name, and refused
again below, in `__torch_dispatch__`, so that nothing is ever computed silently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from .blocks import Block, Blocks, restrict, whole
from .radix import Untrackable

HANDLERS: dict[str, Callable[..., Any]] = {}
Handler = TypeVar("Handler", bound=Callable[..., Any])

# Reading these needs no values.
# fmt: off
PROPERTIES = frozenset((
    "shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "layout", "is_meta", "is_sparse", "is_quantized",
    "grad", "names", "is_cuda", "is_cpu", "is_nested", "itemsize", "nbytes", "grad_fn", "is_mkldnn", "is_xla", "is_mps",
    "is_xpu", "_is_param",
))
METADATA = frozenset((
    "size", "numel", "nelement", "dim", "ndimension", "element_size", "is_floating_point", "is_complex",
    "is_contiguous", "stride", "storage_offset", "__len__", "__hash__", "__repr__", "is_signed", "is_conj", "is_neg",
    "requires_grad_", "is_inference", "dense_dim", "get_device",
))
# fmt: on


class SymbolicTensor(torch.Tensor):
    """A tensor that is a list of blocks over named sources. Made by `leaf`, `constant` and operations on those."""

    blocks: Blocks

    @staticmethod
    def __new__(cls: type[SymbolicTensor], blocks: Blocks, shape: Sequence[int], dtype: torch.dtype) -> SymbolicTensor:
        made: SymbolicTensor = torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=dtype, device=torch.device("cpu"), requires_grad=False
        )
        made.blocks = blocks
        return made

    def __init__(self, blocks: Blocks, shape: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()

    @classmethod
    def leaf(cls, source: Any, shape: Sequence[int], dtype: torch.dtype) -> SymbolicTensor:
        """The whole of one source."""
        shape = tuple(int(size) for size in shape)
        return cls(whole(source, shape), shape, dtype)

    @classmethod
    def constant(cls, value: complex, shape: Sequence[int], dtype: torch.dtype) -> SymbolicTensor:
        """A tensor whose every element is `value`."""
        shape = tuple(int(size) for size in shape)
        return cls(whole(None, shape, fill=value), shape, dtype)

    def sources(self) -> set[str]:
        """The keys of all sources, those behind lazy nodes included."""
        found: set[str] = set()
        for source in {id(block.source): block.source for block in self.blocks if block.source is not None}.values():
            found |= source.keys() if isinstance(source, Node) else {source}
        return found

    def restricted(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[Block]:
        """The blocks of a sub-box, in coordinates relative to `offsets`."""
        return restrict(self.blocks, tuple(self.shape), offsets, sizes)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        with torch._C.DisableTorchFunctionSubclass():
            shape = tuple(self.shape)
        return f"SymbolicTensor(shape={shape}, boxes={len(self.blocks)}, sources={len(self.sources())})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look the operation up in the table, or refuse it by name."""
        name = getattr(func, "__name__", str(func))
        with torch._C.DisableTorchFunctionSubclass():
            if name in ("__get__", "__set__"):
                return _attribute(name, getattr(getattr(func, "__self__", None), "__name__", "?"), func, args)
            if name in METADATA:
                return func(*args, **(kwargs or {}))
            handler = _handlers().get(name)
            if handler is None:
                owner = getattr(func, "__module__", None) or "torch.Tensor"
                raise Untrackable(f"{owner}.{name}() is not an index rearrangement")
            return handler(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse whatever slipped past the table; only `detach` (made by `nn.Parameter`) needs no values."""
        if func is torch.ops.aten.detach.default:
            return like(args[0], args[0].blocks)
        raise Untrackable(f"{func} is not an index rearrangement")


def _handlers() -> dict[str, Callable[..., Any]]:
    # The handlers import this module, so they are loaded at the first use.
    from . import (
        arithmetic,  # noqa: F401
        indexing,  # noqa: F401
        rearrange,  # noqa: F401
    )

    return HANDLERS


def _attribute(access: str, name: str, func: Any, args: tuple[Any, ...]) -> Any:
    if access == "__set__":
        if name != "data":
            return func(*args)
        return _assign(args[0], args[1])
    if name in PROPERTIES:
        return func(*args)
    if name == "data":
        return args[0]
    if name in ("T", "mT"):
        dims = list(range(args[0].dim()))
        dims = dims[::-1] if name == "T" else [*dims[:-2], dims[-1], dims[-2]]
        return _handlers()["permute"](args[0], dims)
    raise Untrackable(f"the attribute .{name} of a weight needs its values")


def _assign(target: SymbolicTensor, value: Any) -> None:
    """`bias.data = pad(bias.data, ...)`: what tying weights does."""
    if not isinstance(value, SymbolicTensor) or tuple(value.shape) != tuple(target.shape):
        raise Untrackable("assigning to .data with another shape or with real values")
    target.blocks = value.blocks


class Node:
    """
    A lazy element-wise function of symbolic tensors of one shape; a source of its own.

    Later rearrangements stay exact blocks over it, and evaluation computes only the elements that are asked for.
    """

    def __init__(
        self,
        function: Callable[..., torch.Tensor],
        inputs: Sequence[SymbolicTensor],
        shape: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        self.function = function
        self.inputs = tuple(inputs)
        self.shape = tuple(shape)
        self.dtype = dtype

    def keys(self) -> set[str]:
        """The keys of the checkpoint tensors below."""
        return {key for tensor in self.inputs for key in tensor.sources()}

    def __repr__(self) -> str:
        return f"Node({getattr(self.function, '__name__', self.function)}, {self.shape})"


class Held(Node):
    """A source whose values are in memory: what a conversion computed that could not be followed without values."""

    def __init__(self, values: torch.Tensor, keys: Sequence[str]) -> None:
        super().__init__(lambda: values, (), tuple(values.shape), values.dtype)
        self.values = values.detach().contiguous().reshape(-1)
        self._keys = frozenset(keys)

    def keys(self) -> set[str]:
        return set(self._keys)


def like(
    tensor: torch.Tensor, blocks: Blocks, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None
) -> SymbolicTensor:
    """A symbolic tensor with these blocks, and shape and dtype of `tensor` unless given."""
    return SymbolicTensor(blocks, tuple(tensor.shape) if shape is None else shape, dtype or tensor.dtype)


def need(value: Any) -> SymbolicTensor:
    """Return `value`. Raises `Untrackable` when it is no symbolic tensor."""
    if not isinstance(value, SymbolicTensor):
        raise Untrackable(f"mixing a weight with a {type(value).__name__}")
    return value


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register the function as the handler of the operations with these names."""

    def register(function: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, function))
        return function

    return register


def wrap_dim(dim: int, rank: int) -> int:
    """The dimension counted from the front. Raises `IndexError` like torch does."""
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise IndexError(f"dimension out of range: {dim} for a tensor of {rank} dimensions")
    return dim % rank if rank else 0


def unpacked(values: tuple[Any, ...]) -> list[Any]:
    """The sizes of `f(2, 3)` and of `f((2, 3))` alike."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        return list(values[0])
    return list(values)
