"""
Copies of modules with nothing in them: what code writes to a copy is seen, and nothing of the model can be written.

The buffers of the module itself hold a sentinel; its parameters, and every tensor of the modules inside, are on meta:
an initialiser may reach into them, and what it would do there costs nothing.
"""

from __future__ import annotations

from typing import Any

_REGISTRIES = ("_buffers", "_parameters", "_modules")
_DEPTH = 4


class NoCopyError(Exception):
    """The module cannot be copied without sharing tensors."""


def sentinel(dtype: Any, second: bool) -> Any:
    """One of two values that no code writes by chance to every element, and that differ from each other."""
    import torch

    if dtype is torch.bool:
        return second
    if dtype.is_floating_point or dtype.is_complex:
        return -1.2345e30 if second and dtype not in (torch.float16, torch.bfloat16) else float("nan")
    return torch.iinfo(dtype).max if second else torch.iinfo(dtype).min


def blank_copy(module: Any, *, second: bool = False, parameters: bool = False) -> Any:
    """
    A copy of the module whose own buffers are on the CPU and hold the first (or second) sentinel, in float32 at least.

    With `parameters` its own parameters do so too. Raises `NoCopyError` when the module keeps tensors where a copy
    would miss them.
    """
    return _Copying(second, parameters).copied(module, inner=False)


class _Copying:
    """One copy: modules that stand at several places are copied once."""

    def __init__(self, second: bool, parameters: bool) -> None:
        self.second = second
        self.parameters = parameters
        self.done: dict[int, Any] = {}

    def copied(self, source: Any, *, inner: bool) -> Any:
        if id(source) in self.done:
            return self.done[id(source)]
        clone = self.done[id(source)] = object.__new__(type(source))
        values = {
            key: value if key in _REGISTRIES else self.detached(value, inner, 0) for key, value in vars(source).items()
        }
        values.pop("_is_hf_initialized", None)
        values["_buffers"] = {key: self.blank(value, inner) for key, value in source._buffers.items()}
        on_meta = inner or not self.parameters
        values["_parameters"] = {
            key: value if value is None else _parameter(self.blank(value, on_meta))
            for key, value in source._parameters.items()
        }
        values["_modules"] = {key: child and self.copied(child, inner=True) for key, child in source._modules.items()}
        vars(clone).update(values)
        return clone

    def detached(self, value: Any, inner: bool, depth: int) -> Any:
        """An attribute with other tensors in place of its tensors; the very same when it has none."""
        import torch

        if isinstance(value, torch.Tensor):
            return self.blank(value, inner)
        if type(value) in (list, tuple, set):
            members = [self.detached(member, inner, depth + 1) for member in self.entered(value, depth)]
            return value if all(map(_same, members, value)) else type(value)(members)
        if type(value) is dict:
            parts = {key: self.detached(member, inner, depth + 1) for key, member in self.entered(value, depth).items()}
            return value if all(parts[key] is value[key] for key in parts) else parts
        return value

    def entered(self, value: Any, depth: int) -> Any:
        if depth > _DEPTH:
            raise NoCopyError
        return value

    def blank(self, value: Any, inner: bool) -> Any:
        import torch

        if value is None:
            return None
        if inner:
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        dtype = torch.float32 if value.dtype.is_floating_point and value.element_size() < 4 else value.dtype
        return torch.full(value.shape, sentinel(dtype, self.second), dtype=dtype, device="cpu")


def _same(one: Any, other: Any) -> bool:
    return one is other


def _parameter(value: Any) -> Any:
    import torch

    return torch.nn.Parameter(value, requires_grad=False)
