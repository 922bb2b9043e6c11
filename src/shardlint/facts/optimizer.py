"""
The `optimizer` section: what the optimizers hold, and how it stands to the parameters that the model has now.

Tensors are told apart by identity, not by name: an optimizer knows no names. A live parameter is what an optimizer
has to hold for it to be trained: the sharded parameter of a unit, never the full one that stands in for it during
a step. Many tensors share few specs, so records refer to specs, groups and live parameters by their index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import frozen

from .frozen import EMPTY, FrozenDict
from .model import TensorLayout
from .unknown import Unknown, known


@frozen(kw_only=True)
class TensorSpec:
    """
    What a tensor is like, without its values. `shape` is global, `local_shape` what this rank holds of it.

    Both are equal and `layout` is None for plain tensors. `dtype` is torch's name without the prefix.
    """

    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    device: str = ""
    layout: TensorLayout | None = None

    def same_layout(self, other: TensorSpec) -> bool:
        """Whether both have the same global shape, mesh axis names, mesh shape and placements."""
        return self.shape == other.shape and known(self.layout) == known(other.layout)

    @property
    def empty_here(self) -> bool:
        """Whether this rank holds no element."""
        return math.prod(self.local_shape) == 0

    def text(self) -> str:
        """`[32, 16] bfloat16 on (fsdp=4) as Shard(dim=0)`, or `plain` in place of mesh and placements."""
        return f"{list(self.shape)} {self.dtype} {layout_text(self.layout)}"


def layout_text(layout: TensorLayout | None) -> str:
    """A layout in words; `plain` for None."""
    if layout is None:
        return "plain"
    names = layout.mesh_axes or ("",) * len(layout.mesh_shape)
    sizes = zip(names, layout.mesh_shape, strict=False)
    mesh = ", ".join(f"{name}={size}" if name else str(size) for name, size in sizes)
    return f"on ({mesh}) as {', '.join(layout.placements)}"


@frozen(kw_only=True)
class OptimizerInstance:
    """
    One optimizer with parameter groups. `name` says how it was reached (`optimizer.chained_optimizers[0].optimizer`).

    `settings` are its own attributes that are plain: switches and numbers that belong to no group. `wrappers` are the
    classes around it, outermost first. `partitioned` says why its tensors are not parameters one by
    one (ZeRO and its like hold flat parts of many), empty when they are.
    """

    name: str
    qualified_type: str
    wrappers: tuple[str, ...] = ()
    partitioned: str = ""
    settings: FrozenDict = EMPTY


@frozen(kw_only=True)
class ParameterGroup:
    """
    A parameter group: `optimizer` is an index, `position` its place among that optimizer's groups, `size` its tensors.

    `options` are its hyperparameters as plain values, a learning rate that is a tensor as a number.
    """

    optimizer: int
    position: int
    name: str
    size: int
    options: FrozenDict = EMPTY

    def number(self, option: str) -> float | None:
        """The hyperparameter as a number, None when the group has none of that name."""
        value = self.options.get(option)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@frozen(kw_only=True)
class LiveParameter:
    """
    A parameter that the model has now, under all its names.

    `main` and `main_gradient` are specs of what frameworks keep beside it in another precision, None when there is
    none. `global_shape` is that of the whole parameter, also where the tensor is a flat
    part of it (`flat`, then `spec` is that of the part). `has_gradient` tells whether there is a gradient now; of a
    frozen one `zero_gradient` tells whether it is zero everywhere on this rank.
    """

    identity: int
    fqn: str
    aliases: tuple[str, ...]
    spec: int
    global_shape: tuple[int, ...]
    requires_grad: bool = True
    owner: str = ""
    flat: bool = False
    main: int | None = None
    main_gradient: int | None = None
    has_gradient: bool = False
    zero_gradient: bool | Unknown = False


@frozen(kw_only=True)
class HeldTensor:
    """
    A tensor at one place of one group. One tensor held twice has two records of equal `identity`.

    `parameter` is the index of the live parameter that it is, or whose main copy it is (`main`); None when it is
    neither. `full_copy_of` is then the index of the parameter that it stands in for during a step, if it does.
    `name` is what the group calls it, empty without names. `state` maps the names of state tensors with dimensions
    to specs; `has_state` says whether there is any state at all.
    """

    identity: int
    group: int
    position: int
    spec: int
    parameter: int | None = None
    main: bool = False
    full_copy_of: int | None = None
    name: str = ""
    requires_grad: bool = True
    has_state: bool = False
    state: FrozenDict = EMPTY


@frozen(kw_only=True)
class OrphanState:
    """
    State that an optimizer keeps for a tensor that none of its groups holds.

    `optimizer` is an index, `spec` that of the tensor, `parameter` the live parameter that it is, None when it is none.
    """

    optimizer: int
    spec: int
    parameter: int | None = None


@frozen(kw_only=True)
class StoredParameterState:
    """
    The stored state of one parameter. `key` is its name or its number; `shapes` those of its state tensors by name.

    `group` and `position` say where the stored groups list it, None when they do not.
    """

    key: str
    group: int | None = None
    position: int | None = None
    shapes: FrozenDict = EMPTY


@frozen(kw_only=True)
class StoredOptimizerFacts:
    """
    An optimizer state on disk, read without executing anything.

    `named` says whether it is keyed by parameter names; else keys are positions. `problem` says why it could not be
    read, and then nothing else means anything.
    """

    path: str
    format: str  # torch, dcp
    named: bool = False
    group_sizes: tuple[int, ...] = ()
    parameters: tuple[StoredParameterState, ...] = ()
    problem: str = ""


@frozen(kw_only=True)
class OptimizerFacts:
    """
    The optimizers, their groups, what they hold, and every live parameter.

    `unread` says what of the optimizers could not be read, so that nobody knows what it holds. `stored` are optimizer
    states in the checkpoint's folder.
    """

    optimizers: tuple[OptimizerInstance, ...] = ()
    groups: tuple[ParameterGroup, ...] = ()
    specs: tuple[TensorSpec, ...] = ()
    parameters: tuple[LiveParameter, ...] = ()
    held: tuple[HeldTensor, ...] = ()
    unread: tuple[str, ...] = ()
    stored: tuple[StoredOptimizerFacts, ...] = ()
    orphans: tuple[OrphanState, ...] = ()

    def group_of(self, held: HeldTensor) -> ParameterGroup:
        """The group that lists the tensor."""
        return self.groups[held.group]

    def optimizer_of(self, held: HeldTensor) -> OptimizerInstance:
        """The optimizer that lists the tensor."""
        return self.optimizers[self.group_of(held).optimizer]

    def parameter_of(self, held: HeldTensor) -> LiveParameter | None:
        """The live parameter that the tensor is or stands for."""
        return None if held.parameter is None else self.parameters[held.parameter]

    def held_by_parameter(self) -> dict[int, list[HeldTensor]]:
        """For each live parameter that is held, by index: where."""
        found: dict[int, list[HeldTensor]] = {}
        for item in self.held:
            if item.parameter is not None:
                found.setdefault(item.parameter, []).append(item)
        return found

    def not_held(self) -> Iterator[LiveParameter]:
        """The live parameters that no optimizer holds, nor their main copies."""
        held = {item.parameter for item in self.held}
        return (item for index, item in enumerate(self.parameters) if index not in held)
