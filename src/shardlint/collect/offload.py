"""What moves parameters between devices during a run, so that state on two types of device is meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..introspect.attributes import read
from ..introspect.walk import Walk
from .sharding.fsdp2 import groups_of, state_of

_ELSEWHERE = ("cpu", "disk", "meta")


def offload_reasons(walk: Walk) -> tuple[str, ...]:
    """Each kind of offloading that the model's modules show, once, in a fixed order."""
    reasons: set[str] = set()
    for module in walk.modules:
        values = module.values
        # Nearly every module shows none of this, and large models have tens of thousands of them.
        if "_hf_hook" in values or "hf_device_map" in values or "cpu_offload" in values or state_of(module.module):
            reasons.update(_reasons(module.module, values))
    return tuple(sorted(reasons))


def _reasons(module: Any, values: Mapping[str, Any]) -> Iterator[str]:
    if "_hf_hook" in values and _offloads(values["_hf_hook"]):
        yield "accelerate hooks offload modules"
    device_map = values.get("hf_device_map")
    if isinstance(device_map, Mapping) and any(str(place) in _ELSEWHERE for place in device_map.values()):
        yield "its device map places modules on the CPU or on disk"
    state = state_of(module)
    for group in groups_of(state) if state is not None else ():
        if type(read(group, "offload_policy")).__name__ == "CPUOffloadPolicy":
            yield "a unit has a CPU offload policy"
    if read(values.get("cpu_offload"), "offload_params", False):
        yield "FSDP1 offloads parameters"


def _offloads(hook: Any) -> bool:
    hooks = read(hook, "hooks") or (hook,)
    return any(bool(read(callback, "offload", False)) or "Offload" in type(callback).__name__ for callback in hooks)
