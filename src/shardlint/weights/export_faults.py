"""How what an export would write differs from what is stored, and from what is live when it is loaded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from ..facts import TensorPlan
from ..loading.planner import LiveModel
from ..names import collapse_exactly, pattern_of
from .forward import Forward
from .positions import ElementOrigin, origin_at, unravelled, wrong_position
from .symbolic.tensor import SymbolicTensor

Tensors = Mapping[str, SymbolicTensor]
_EXCUSED = ("missing-ignored", "missing-excluded")


@frozen
class Live:
    """A source that is a live tensor, told from stored keys by its type."""

    name: str


@frozen(kw_only=True)
class ExportFault:
    """
    One difference between the checkpoint and what an export would write.

    `what` is place or shape (a key with other elements), renamed, absent (a stored key that is not written), added (a
    written key that is not stored), operation (the export raises) or reload (the export is written, and loading it
    does not give `live` back). `key` is the stored or written key, `written` the other name of a renamed one,
    `operation` the conversion concerned, `first` the first element that goes to the wrong place.
    """

    what: str
    key: str
    live: str
    message: str
    operation: str = ""
    first: str = ""
    written: str = ""


@frozen(kw_only=True)
class ExportFaults:
    """Faults that differ only in the numbers of their names. `first` stands for `count` of them."""

    subject: str
    first: ExportFault
    live: tuple[str, ...]
    keys: tuple[str, ...]
    count: int


@frozen(kw_only=True)
class Exported:
    """What would be written: symbolic tensors over stored elements, and over live ones, by key."""

    forward: Forward
    stored: Tensors
    live: Tensors
    dropped: frozenset[str] = field(factory=frozenset)
    plans: Mapping[str, TensorPlan] = field(factory=dict)


def grouped(found: Sequence[ExportFault]) -> tuple[ExportFaults, ...]:
    """
    The faults of one kind, one operation and one pattern of names together, in order of their first.

    Keys that would be written under another name are together when the same part of the name changes.
    """
    groups: dict[tuple[str, ...], list[ExportFault]] = {}
    for fault in found:
        where = _renaming(fault) if fault.what == "renamed" else (pattern_of(fault.live), pattern_of(fault.key))
        groups.setdefault((fault.what, fault.operation, *where), []).append(fault)
    return tuple(
        ExportFaults(
            subject=_subject(members),
            first=members[0],
            live=tuple(dict.fromkeys(fault.live for fault in members if fault.live)),
            keys=tuple(dict.fromkeys(fault.key for fault in members if fault.key)),
            count=len(members),
        )
        for members in groups.values()
    )


def _subject(members: Sequence[ExportFault]) -> str:
    names = list(dict.fromkeys(fault.live or fault.key or fault.operation for fault in members))
    if len({pattern_of(name) for name in names}) == 1:
        return collapse_exactly(names)[0][0] if len(collapse_exactly(names)) == 1 else pattern_of(names[0])
    return f"{members[0].key} and {len(members) - 1} more"


def _renaming(fault: ExportFault) -> tuple[str, str]:
    """The parts of the names that a renaming exchanges, their numbers left out."""
    old, new = pattern_of(fault.key).split("."), pattern_of(fault.written).split(".")
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    return ".".join(old), ".".join(new)


def export_faults(found: Exported) -> list[ExportFault]:
    """How what would be written differs from what is stored."""
    faults: list[ExportFault] = []
    plan = found.forward.plan
    users = plan.names_by_key()
    shapes = {key: source.shape for key, source in found.forward.sources.tensors.items()}
    same: set[str] = set()
    for key, tensor in found.stored.items():
        if key in shapes:
            fault = _misplaced(key, shapes[key], tensor, found)
            faults += [fault] if fault else []
            continue
        whole = _whole_copy_of(tensor, shapes)
        same |= {whole} if whole else set()
        faults.append(_added(key, whole, found))
    written = set(found.stored)
    ends = {name for tie in plan.ties if tie.both_stored for name in (tie.name, tie.source)}
    tied = {key for name in ends if name in found.plans for key in found.plans[name].sources}
    for key in shapes:
        if key not in written and key not in same and key in users and key not in tied:
            live = users[key][0]
            message = f"{key} (loaded into {live}) would not be written"
            faults.append(_fault(found, what="absent", key=key, live=live, message=message))
    for leftover in plan.leftovers:
        if leftover.reason == "unexpected" and leftover.key not in written:
            message = f"{leftover.key} would not be written: no live tensor took it"
            faults.append(ExportFault(what="absent", key=leftover.key, live="", message=message))
    return faults


def _fault(found: Exported, *, live: str, **values: Any) -> ExportFault:
    tensor = found.plans.get(live)
    operation = " and ".join(tensor.operations) if tensor and tensor.operations else "renaming"
    return ExportFault(live=live, operation=operation, **values)


def _misplaced(key: str, shape: tuple[int, ...], tensor: SymbolicTensor, found: Exported) -> ExportFault | None:
    at = wrong_position(key, shape, tensor)
    same_shape = tuple(tensor.shape) == shape
    if at is None and same_shape:
        return None
    if not same_shape:
        live = _first_live(found.live[key])
        message = f"{key} would be written with the shape {list(tensor.shape)}, stored is {list(shape)}"
        return _fault(found, what="shape", key=key, live=live, message=message)
    assert at is not None
    origin, source = origin_at(tensor, at), origin_at(found.live[key], at)
    live = source.source.name if isinstance(source.source, Live) else ""
    first = f"{key}{list(unravelled(at, shape))}"
    message = f"{first} would be {_element(source, found)}, which {_loaded_from(origin, found)}"
    return _fault(found, what="place", key=key, live=live, message=message, first=first)


def _element(origin: ElementOrigin, found: Exported) -> str:
    if not isinstance(origin.source, Live):
        return f"the constant {origin.source}"
    plan = found.plans.get(origin.source.name)
    index = unravelled(origin.flat, plan.shape) if plan and plan.shape else (origin.flat,)
    return f"the live {origin.source.name}{list(index)}"


def _loaded_from(origin: ElementOrigin, found: Exported) -> str:
    source = found.forward.sources.tensors.get(origin.source) if isinstance(origin.source, str) else None
    if source is not None and not origin.computed:
        return f"was loaded from {source.key}{list(unravelled(origin.flat, source.shape))}"
    computed = origin.computed or (isinstance(origin.source, Live) and origin.source.name in found.forward.groups)
    return "was computed while loading" if computed else "no stored element fills"


def _whole_copy_of(tensor: SymbolicTensor, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The stored key that the tensor is, element by element; empty when there is none."""
    sources: set[Any] = tensor.sources()
    key = next(iter(sources), None)
    if len(sources) != 1 or not isinstance(key, str) or shapes.get(key) != tuple(tensor.shape):
        return ""
    return key if wrong_position(key, shapes[key], tensor) is None else ""


def _added(key: str, whole: str, found: Exported) -> ExportFault:
    live = _first_live(found.live[key])
    if whole:
        message = f"{whole} (loaded into {live}) would be written as {key}"
        return _fault(found, what="renamed", key=whole, live=live, message=message, written=key)
    return _fault(
        found, what="added", key=key, live=live, message=f"{key} would be written, from {live}; it is not stored"
    )


def _first_live(tensor: SymbolicTensor) -> str:
    return next((block.source.name for block in tensor.blocks if isinstance(block.source, Live)), "")


def reload_faults(found: Exported, live: LiveModel, again: Forward) -> list[ExportFault]:
    """Which live tensors would not come back as they are when the export is loaded."""
    faults = []
    for tensor in again.plan.tensors:
        if tensor.name in found.dropped or tensor.status in _EXCUSED:
            continue
        reason = _not_back(tensor.name, live, again, tensor)
        if reason and found.plans[tensor.name].status in ("loaded", "tied"):
            message = f"loading the export would not give {tensor.name} back: {reason}"
            faults.append(_fault(found, what="reload", key="", live=tensor.name, message=message))
    return faults


def _not_back(name: str, live: LiveModel, again: Forward, plan: TensorPlan) -> str:
    region = again.regions.get(name)
    shape = live.tensors[name].shape
    if region is None:
        return again.refused.get(name) or plan.reason or f"it would be {plan.status}"
    if tuple(region.shape) != shape:
        return f"it would have the shape {list(region.shape)}"
    at = wrong_position(Live(live.tensors[name].identity), shape, region)
    if at is None:
        return ""
    origin = origin_at(region, at)
    other = origin.source.name if isinstance(origin.source, Live) else f"the constant {origin.source}"
    index = list(unravelled(origin.flat, live.tensors[other].shape)) if other in live.tensors else ""
    return f"its element {list(unravelled(at, shape))} would be {other}{index}"
