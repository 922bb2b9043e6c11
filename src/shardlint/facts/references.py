"""Whether the records of facts refer to records that are there: facts of other hands may have the right types only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .unknown import Unknown, is_known

if TYPE_CHECKING:
    from .optimizer import OptimizerFacts
    from .sharding import ShardingFacts
    from .snapshot import Facts

_Link = tuple[str, str]  # a field that holds an index, and the table that it is an index into

_SHARDING: dict[str, tuple[_Link, ...]] = {
    "layouts": (("mesh", "meshes"), ("source_mesh", "meshes")),
    "units": (("mesh", "meshes"), ("reduction", "reductions")),
    "parameters": (("unit", "units"), ("layout", "layouts")),
}
_OPTIMIZER: dict[str, tuple[_Link, ...]] = {
    "groups": (("optimizer", "optimizers"),),
    "parameters": (("spec", "specs"), ("main", "specs"), ("main_gradient", "specs")),
    "held": (("group", "groups"), ("spec", "specs"), ("parameter", "parameters"), ("full_copy_of", "parameters")),
    "orphans": (("optimizer", "optimizers"), ("spec", "specs"), ("parameter", "parameters")),
}


def reference_problems(facts: Facts) -> list[str]:
    """What refers to nothing, and lists that belong together and have different lengths, each with its path."""
    problems: list[str] = []
    if facts.sharding is not None:
        problems += _links("sharding", facts.sharding, _SHARDING)
        problems += _lengths(facts.sharding)
    if facts.optimizer is not None:
        problems += _links("optimizer", facts.optimizer, _OPTIMIZER)
        problems += _of_optimizer(facts.optimizer)
    return problems


def _links(section: str, tables: Any, links: dict[str, tuple[_Link, ...]]) -> Iterator[str]:
    sizes = {target: len(getattr(tables, target)) for fields in links.values() for _, target in fields}
    for table, fields in links.items():
        for number, record in enumerate(getattr(tables, table)):
            for name, target in fields:
                index = getattr(record, name)
                if index is not None and is_known(index) and not 0 <= index < sizes[target]:
                    yield _refers(f"{section}.{table}[{number}].{name}", index, sizes[target], f"{section}.{target}")


def _refers(path: str, index: object, size: int, target: str) -> str:
    return f"{path}: expected the number of one of the {size} {target}, got {index}"


def _lengths(sharding: ShardingFacts) -> Iterator[str]:
    for number, mesh in enumerate(sharding.meshes):
        path, size = f"sharding.meshes[{number}]", len(mesh.shape)
        if mesh.axes:
            yield from _length(f"{path}.axes", mesh.axes, size)
        if mesh.coordinate is not None:
            yield from _length(f"{path}.coordinate", mesh.coordinate, size)
    for number, layout in enumerate(sharding.layouts):
        path, size = f"sharding.layouts[{number}]", len(layout.global_shape)
        for name in ("boxes", "built"):
            for place, box in enumerate(getattr(layout, name) or ()):
                yield from _length(f"{path}.{name}[{place}].offsets", box.offsets, size)
                yield from _length(f"{path}.{name}[{place}].sizes", box.sizes, size)


def _length(path: str, values: Sequence[object], size: int) -> Iterator[str]:
    if len(values) != size:
        yield f"{path}: expected {size} values, one of each dimension, got {len(values)}"


def _of_optimizer(optimizer: OptimizerFacts) -> Iterator[str]:
    size = len(optimizer.specs)
    for number, held in enumerate(optimizer.held):
        for name, spec in held.state.items():
            if isinstance(spec, Unknown):
                continue
            if type(spec) is not int or not 0 <= spec < size:
                yield _refers(f"optimizer.held[{number}].state.{name}", spec, size, "optimizer.specs")
    for number, stored in enumerate(optimizer.stored):
        groups = len(stored.group_sizes)
        for place, state in enumerate(stored.parameters):
            if state.group is not None and not 0 <= state.group < groups:
                path = f"optimizer.stored[{number}].parameters[{place}].group"
                yield _refers(path, state.group, groups, f"optimizer.stored[{number}].group_sizes")
