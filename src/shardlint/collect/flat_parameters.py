"""The parameters of FSDP1 as their author wrote them: names and shapes from the layout, not from the flat storage."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import evolve

from ..facts import ModelFacts, TensorFacts
from ..facts.sharding import LayoutFacts, OwnershipFacts, ShardingFacts
from ..names import ordered


def with_originals(model: ModelFacts, sharding: ShardingFacts) -> ModelFacts:
    """
    `model` with the parameters that FSDP1 manages under their own names and in their global shapes.

    With original parameters the model registers this rank's run of elements of each, without them one flat parameter
    for each wrapper.
    """
    flat = [index for index, unit in enumerate(sharding.units) if unit.kind == "fsdp1"]
    if not flat:
        return model
    by_unit = sharding.by_unit()
    records = [record for index in flat for record in by_unit[index]]
    by_identity: dict[int, list[OwnershipFacts]] = {}
    for record in records:
        by_identity.setdefault(record.identity, []).append(record)
    originals = [_original(same, sharding.layout_of(same[0])) for same in by_identity.values()]
    tensors = tuple(_tensors(model.tensors, originals))
    parameters = [tensor for tensor in tensors if tensor.is_parameter]
    counts = evolve(
        model.counts,
        parameters=len(parameters),
        parameter_elements=sum(math.prod(tensor.shape) for tensor in parameters if tensor.unreadable is None),
    )
    return evolve(model, tensors=tensors, counts=counts)


def _original(same: list[OwnershipFacts], layout: LayoutFacts) -> TensorFacts:
    """The facts of a parameter under all its names."""
    names = ordered(record.fqn for record in same)
    return TensorFacts(
        fqn=names[0],
        aliases=names,
        kind="parameter",
        shape=layout.global_shape,
        dtype=same[0].dtype,
        device=same[0].device,
        requires_grad=same[0].requires_grad,
        is_meta=same[0].device == "meta",
        local_shape=layout.local_shape,
    )


def _tensors(tensors: tuple[TensorFacts, ...], originals: list[TensorFacts]) -> Iterator[TensorFacts]:
    """The tensors with the originals in the place of what stands for them; those that nothing stands for come last."""
    by_name = {name: original for original in originals for name in original.aliases}
    left = {original.fqn: original for original in originals}
    for tensor in tensors:
        original = by_name.get(tensor.fqn)
        if original is not None and tensor.is_parameter:
            left.pop(original.fqn, None)
            yield evolve(tensor, shape=original.shape, local_shape=original.local_shape)
        elif not tensor.fqn.rpartition(".")[2].startswith("_flat_param"):
            yield tensor
    yield from left.values()
