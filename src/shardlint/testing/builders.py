"""Short ways to write facts by hand: a tensor, a module, a model, the checkpoint that belongs to a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from attrs import evolve

from ..facts import (
    CheckpointFacts,
    ClassDeclaration,
    EntryFacts,
    FileFacts,
    FrozenDict,
    HeldTensor,
    IndexFacts,
    LiveParameter,
    ModelCounts,
    ModelFacts,
    ModuleFacts,
    OptimizerFacts,
    OptimizerInstance,
    ParameterGroup,
    TensorFacts,
    TensorSpec,
    TensorValues,
    ValuesFacts,
)

_STORED_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "bool": "BOOL"}
_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "BOOL": 1}


def tensor(fqn: str, shape: Sequence[int], *aliases: str, **fields: Any) -> TensorFacts:
    """
    Build a float32 parameter on the CPU named `fqn` (and `aliases`) with the global `shape` in elements.

    Any field of `TensorFacts` can be given by name; `persistent` makes it a buffer.
    """
    buffer = fields.get("persistent") is not None
    defaults: dict[str, Any] = {
        "kind": "buffer" if buffer else "parameter",
        "dtype": "float32",
        "device": "cpu",
        "requires_grad": not buffer,
        "is_meta": False,
    }
    return TensorFacts(fqn=fqn, aliases=(fqn, *aliases), shape=tuple(shape), **(defaults | fields))


def module(fqn: str, qualified_type: str, *aliases: str, **fields: Any) -> ModuleFacts:
    """Build the facts of a module in training mode. Any field of `ModuleFacts` can be given by name."""
    defaults: dict[str, Any] = {"forward_signature": "(hidden_states)", "training": True}
    return ModuleFacts(fqn=fqn, aliases=(fqn, *aliases), qualified_type=qualified_type, **(defaults | fields))


def declaration(fqn: str, qualified_type: str, **fields: Any) -> ClassDeclaration:
    """Build what a module class declares; `tied_weights` sets form and names as well."""
    if tied := fields.get("tied_weights"):
        fields = {"tied_weights_form": "dict", "tied_weights_names": tuple(tied)} | fields
        fields["tied_weights"] = FrozenDict(tied)
    return ClassDeclaration(fqn=fqn, qualified_type=qualified_type, **fields)


def model(
    qualified_type: str, tensors: Iterable[TensorFacts], modules: Iterable[ModuleFacts] = (), **fields: Any
) -> ModelFacts:
    """Build a model of `tensors`, numbering their storages in order and counting what there is to count."""
    numbered = []
    for number, tensor in enumerate(tensors):
        storage = None if tensor.is_meta else number
        numbered.append(tensor if tensor.storage is not None else evolve(tensor, storage=storage))
    all_modules = tuple(modules) or (module("", qualified_type),)
    parameters = [tensor for tensor in numbered if tensor.is_parameter]
    counts = ModelCounts(
        modules=len(all_modules),
        parameters=len(parameters),
        buffers=len(numbered) - len(parameters),
        parameter_elements=sum(parameter.numel for parameter in parameters),
    )
    return ModelFacts(
        qualified_type=qualified_type, modules=all_modules, tensors=tuple(numbered), counts=counts, **fields
    )


def checkpoint_for(
    facts: ModelFacts, *, files: int = 1, config: Mapping[str, Any] | None = None, path: str = "checkpoint"
) -> CheckpointFacts:
    """
    Build the checkpoint that saving the model would give: every tensor of its state dict, in `files` files.

    Tied tensors are stored once, under their first name. More than one file come with an index.
    """
    stored = [tensor for tensor in facts.tensors if tensor.in_state_dict]
    names = [f"model-{number:05}-of-{files:05}.safetensors" for number in range(1, files + 1)]
    names = names if files > 1 else ["model.safetensors"]
    ends = dict.fromkeys(names, 0)
    counts = dict.fromkeys(names, 0)
    entries = []
    for position, tensor in enumerate(stored):
        file = names[position * files // len(stored)]
        dtype = _STORED_NAMES[tensor.dtype]
        end = ends[file] + prod(tensor.shape) * _SIZES[dtype]
        begin = ends[file]
        entries.append(EntryFacts(key=tensor.fqn, dtype=dtype, shape=tensor.shape, file=file, begin=begin, end=end))
        ends[file], counts[file] = end, counts[file] + 1
    return CheckpointFacts(
        path=path,
        format="safetensors-sharded" if files > 1 else "safetensors",
        files=tuple(
            FileFacts(
                name=name,
                size=ends[name] + 8 + 64,
                kind="safetensors",
                opened=True,
                header_bytes=64,
                tensors=counts[name],
                counts=True,
            )
            for name in names
        ),
        entries=tuple(entries),
        index=index_for(entries) if files > 1 else None,
        config=FrozenDict(config) if config is not None else None,
    )


def index_for(entries: Iterable[EntryFacts], name: str = "model.safetensors.index.json") -> IndexFacts:
    """Build the index that names the file of each of `entries`."""
    all_entries = list(entries)
    return IndexFacts(
        name=name,
        weight_map=FrozenDict({entry.key: entry.file for entry in all_entries}),
        total_size=sum(entry.end - entry.begin for entry in all_entries),
    )


def optimizer_for(facts: ModelFacts) -> OptimizerFacts:
    """
    Build an AdamW that took a step: matrices in a group with weight decay, vectors in one without, moments as wide.

    Specs are numbered by parameter: 0 is that of the first one.
    """
    live = [
        LiveParameter(
            identity=number,
            fqn=param.fqn,
            aliases=param.aliases,
            spec=number,
            global_shape=param.shape,
            requires_grad=param.requires_grad,
        )
        for number, param in enumerate(facts.parameters)
    ]
    specs = [
        TensorSpec(shape=parameter.shape, local_shape=parameter.shape, dtype=parameter.dtype, device=parameter.device)
        for parameter in facts.parameters
    ]
    chosen = [[param for param in live if (len(param.global_shape) > 1) is matrices] for matrices in (True, False)]
    common = {"lr": 0.001, "betas": (0.9, 0.999)}
    groups = [
        ParameterGroup(
            optimizer=0,
            position=number,
            name=f"group {number}",
            size=len(members),
            options=FrozenDict({**common, "weight_decay": decay}),
        )
        for number, (members, decay) in enumerate(zip(chosen, (0.1, 0.0), strict=True))
    ]
    held_tensors = [
        HeldTensor(
            identity=param.identity,
            group=group,
            position=position,
            spec=param.spec,
            parameter=param.identity,
            requires_grad=param.requires_grad,
            has_state=True,
            state=FrozenDict({"exp_avg": param.spec, "exp_avg_sq": param.spec}),
        )
        for group, members in enumerate(chosen)
        for position, param in enumerate(members)
    ]
    return OptimizerFacts(
        optimizers=(OptimizerInstance(name="optimizer", qualified_type="torch.optim.adamw.AdamW"),),
        groups=tuple(groups),
        specs=tuple(specs),
        parameters=tuple(live),
        held=tuple(held_tensors),
    )


def values_for(facts: ModelFacts) -> ValuesFacts:
    """Build the statistics of a model whose tensors hold ordinary numbers: finite, different, small."""
    return ValuesFacts(
        tensors=tuple(
            TensorValues(fqn=tensor.fqn, elements=tensor.numel, minimum=-0.05, maximum=0.05) for tensor in facts.tensors
        )
    )
