"""
Live tensors that are not what the module's storage says: padded beyond what they hold, or held outside the module.

The owner declares them (`Contract.logical_shapes`, `shardlint.weights.ExternalState`); a padded parameter may also say
itself, in `_orig_size` or `tensor_shape`, which part of its storage counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..analysis.contract_globs import first_match
from ..facts import ContractFacts
from ..introspect.attributes import read
from ..introspect.walk import Walk
from .loader import PlannedTarget

Shape = tuple[int, ...]
_ON_OBJECT = ("_orig_size", "tensor_shape")


def logical_shapes(walk: Walk, contract: ContractFacts | None) -> dict[str, Shape]:
    """The shapes, by every name, of tensors whose storage is larger than what they hold, as declared or found."""
    declared = dict(contract.logical_shapes) if contract is not None else {}
    found: dict[str, Shape] = {}
    for tensor in walk.tensors:
        glob = first_match(declared, tensor.names) if declared else ""
        shape = tuple(declared[glob]) if glob else _on_object(tensor.tensor)
        if shape is not None and shape != tuple(tensor.tensor.shape):
            found.update(dict.fromkeys(tensor.names, shape))
    return found


def _on_object(tensor: Any) -> Shape | None:
    """The smaller shape that the tensor carries beside its storage; None when there is none."""
    storage = tuple(tensor.shape)
    for name in _ON_OBJECT:
        said = read(tensor, name)
        if not isinstance(said, (tuple, list)) or len(said) != len(storage):
            continue
        if all(isinstance(size, int) and 0 < size <= held for size, held in zip(said, storage, strict=True)):
            return tuple(int(size) for size in said)
    return None


def declared_targets(walk: Walk | None, contract: ContractFacts | None, external: Any) -> dict[str, PlannedTarget]:
    """What a plan has to take in place of, and beside, the tensors of the module, by name."""
    found: dict[str, PlannedTarget] = {}
    if walk is not None:
        shapes = logical_shapes(walk, contract)
        for tensor in walk.tensors if shapes else ():
            for name in tensor.names:
                if name in shapes:
                    found[name] = _target(shapes[name], tensor.tensor, tensor.fqn)
    for shard in external.shards() if external is not None else ():
        found[shard.name] = _target(tuple(shard.global_shape), shard.local, shard.name)
    return found


def _target(shape: Shape, tensor: Any, identity: str) -> PlannedTarget:
    return PlannedTarget(shape=shape, dtype=str(tensor.dtype).removeprefix("torch."), identity=identity)


Declared = Mapping[str, PlannedTarget]
