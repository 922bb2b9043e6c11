"""
Wrappers: modules that stand around another one and take themselves out of its names.

A class that is known by its name says which of its children it wraps. Any other module with one child is a wrapper when
`named_parameters()` or `state_dict()` of its own leave the child's segment out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen


@frozen
class WrapperType:
    """A class of wrappers, the segment that it adds to names, and what kind of wrapper it is."""

    class_name: str
    segment: str
    kind: str
    packages: tuple[str, ...] = ()  # any package when empty


# `module` is a common name for a real child, so there the package of the class has to fit as well.
_MODULE_WRAPPER_PACKAGES = ("torch", "apex", "megatron", "deepspeed", "fairscale")
WRAPPER_TYPES = (
    WrapperType("OffloadWrapper", "_checkpoint_wrapped_module", "activation-offload"),
    WrapperType("ActivationWrapper", "_checkpoint_wrapped_module", "activation-checkpoint"),
    WrapperType("CheckpointWrapper", "_checkpoint_wrapped_module", "activation-checkpoint"),
    WrapperType("OptimizedModule", "_orig_mod", "compile"),
    WrapperType("FullyShardedDataParallel", "_fsdp_wrapped_module", "fsdp1"),
    WrapperType("DistributedDataParallel", "module", "ddp", _MODULE_WRAPPER_PACKAGES),
    WrapperType("DataParallel", "module", "dp", _MODULE_WRAPPER_PACKAGES),
)


def registry(module: Any, name: str) -> Mapping[Any, Any]:
    """One of a module's own registries (`_modules`, `_parameters`, `_buffers`), empty when there is none."""
    try:
        members = object.__getattribute__(module, "__dict__").get(name)
    except AttributeError:
        return {}
    return members if hasattr(members, "items") else {}


def wrapper_segment(kind: type) -> tuple[str, str] | None:
    """`(segment, wrapper kind)` when `kind` is a wrapper class or a subclass of one, else None."""
    for base in kind.__mro__:
        for known in WRAPPER_TYPES:
            package = base.__module__.partition(".")[0]
            if base.__name__ == known.class_name and (not known.packages or package in known.packages):
                return known.segment, known.kind
    return None


def may_wrap(kind: type) -> bool:
    """Whether modules of the class can be wrappers: it is known as one, or names its tensors itself."""
    return wrapper_segment(kind) is not None or _overrides(kind, "named_parameters") or _overrides(kind, "state_dict")


def wrapping(module: Any) -> tuple[str, Any] | None:
    """The kind of wrapper that a module is, and what it wraps; None when it is no wrapper."""
    known = wrapper_segment(type(module))
    children = [(name, child) for name, child in registry(module, "_modules").items() if child is not None]
    if known is not None:
        segment, kind = known
        inner = registry(module, "_modules").get(segment)
        if inner is not None:
            return kind, inner
        if not children and kind.startswith("activation") and not _tensors(module):
            return kind, None
    if len(children) == 1 and not _tensors(module) and _strips(module, *children[0]):
        return known[1] if known else "wrapper", children[0][1]
    return None


def _tensors(module: Any) -> bool:
    """Whether the module registers tensors itself: a wrapper has none of its own."""
    return any(value is not None for name in ("_parameters", "_buffers") for value in registry(module, name).values())


def _strips(module: Any, segment: Any, child: Any) -> bool:
    """Whether the module leaves the segment of its child out of its names, as far as that can be told unchanged."""
    if not isinstance(segment, str):
        return False
    kind = type(module)
    if registry(module, "_state_dict_hooks") and _hooks_strip(module, segment):
        return True
    if _overrides(kind, "state_dict") and not _has_hooks(child):
        keys = _keys(module.state_dict)
        if keys:
            return not _begin_with(segment, keys)
    # A public child that `named_parameters()` leaves out alone keeps its name in every checkpoint.
    if segment.startswith("_") and _overrides(kind, "named_parameters"):
        names = _keys(lambda: (name for name, _ in module.named_parameters()))
        return names is not None and not _begin_with(segment, names)
    return False


def _keys(listing: Any) -> tuple[str, ...] | None:
    try:
        return tuple(str(key) for key in listing())
    except Exception:  # a stranger's own code
        return None


def _begin_with(segment: str, names: Iterable[str]) -> bool:
    return any(name.partition(".")[0] == segment for name in names)


def _hooks_strip(module: Any, segment: str) -> bool:
    """Whether the hooks of `state_dict()` take the segment out of a key, tried on a key that stands for all."""
    state: Any = _State({f"outer.{segment}.inner": None})
    for hook in registry(module, "_state_dict_hooks").values():
        try:
            changed = hook(module, state, "outer.", {})
        except Exception:  # a hook that needs real tensors
            return False
        state = state if changed is None else changed
    return list(state) == ["outer.inner"]


class _State(dict[str, Any]):
    """What hooks take for a state dict: torch keeps metadata on it."""

    _metadata: Mapping[str, Any] = {}


def _has_hooks(root: Any) -> bool:
    """Whether anything below acts when it is saved: shards that are gathered, or go back to their place."""
    hooks = ("_state_dict_hooks", "_state_dict_pre_hooks")
    return any(registry(module, name) for module in _below(root) for name in hooks)


def _below(root: Any) -> Iterator[Any]:
    seen, waiting = set[int](), [root]
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            yield module
            waiting.extend(registry(module, "_modules").values())


def _overrides(kind: type, method: str) -> bool:
    """Whether the class, or a base that is not of torch, defines the method itself."""
    owner = next((base for base in kind.__mro__ if method in vars(base)), object)
    return owner is not object and owner.__module__.partition(".")[0] != "torch"
