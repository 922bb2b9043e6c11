"""
What ranks compare: every fact as a text, by what it is a fact of.

A row is everything that is known of one thing (a parameter, a unit, a module, a setting). Facts that belong to one rank
stand in `OF_ONE_RANK`, each with the reason; all others must be equal on ranks that work together.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import msgspec

from ..facts import Facts, ModelFacts, OptimizerFacts, is_known
from ..facts.codec import encode_hook
from ..facts.sharding import EXPERT, OwnershipFacts, ReductionFacts, ShardingFacts, UnitFacts, placement_texts

Row = dict[str, str]
Rows = dict[str, Row]
"""Rows by key: see `key_of`."""

_LONG = 160
"""Characters of a value that are sent; of a longer one, its beginning and a digest."""

_NUMBER = "the number of a record in a table of this rank: what it stands for is compared"
_CUT = "the part that this rank holds"
_PLACE = "where this rank stands in the job"
_MOMENT = "when this rank was looked at"
_FOLLOWS = "follows from facts that are compared"

OF_ONE_RANK: Mapping[str, str] = {
    "BuildFacts": "a rank whose builder failed is named by D201",
    "CheckpointFacts.path": "each node may have the files in a folder of its own",
    "CheckpointFacts.problems": "D505 and its kin name the rank that has them",
    "CheckpointFacts.files": "files that no loader reads may differ; the stored tensors are compared",
    "Environment.rank": _PLACE,
    "Environment.world_size": _PLACE,
    "Environment.versions": "compared between all ranks of the job, before anything else (SL010)",
    "HeldTensor": "an optimizer may hold the parameters only that its rank owns; the group of each is compared",
    "ContractFacts.invariants": "what a checker found on this rank: the invariant rules name the rank",
    "LayoutFacts.boxes": _CUT,
    "LayoutFacts.built": _CUT,
    "LayoutFacts.flat": _CUT,
    "LayoutFacts.local_shape": _CUT,
    "LayoutFacts.replayed_shape": _CUT,
    "LiveParameter": "its shape, dtype and layout are compared as those of the parameter",
    "LoadFacts": "one rank may load and send to the others; D501 judges each report",
    "MeshFacts.coordinate": _PLACE,
    "MeshFacts.ranks": _PLACE,
    "ModelCounts": _FOLLOWS,
    "ModelFacts.sample": _CUT,
    "ModuleFacts.fqn": "the name of its row",
    "OptimizerFacts.specs": _CUT,
    "OptimizerFacts.stored": "files, as above",
    "OwnershipFacts.fqn": "the name of its row",
    "OwnershipFacts.identity": _NUMBER,
    "OwnershipFacts.layout": _NUMBER,
    "OwnershipFacts.optimized": "an optimizer may hold the parameters only that its rank owns (D604 joins them)",
    "OwnershipFacts.origin": _NUMBER,
    "OwnershipFacts.unit": _NUMBER,
    "ParameterGroup.optimizer": _NUMBER,
    "ParameterGroup.size": "an optimizer may hold the parameters only that its rank owns",
    "PlanFacts": _FOLLOWS,
    "ReductionFacts.ranks": _PLACE,
    "RuntimeFacts": "compared by itself, between ranks that had a trace",
    "ShardingFacts.moment": _MOMENT,
    "TensorFacts.fqn": "the name of its row",
    "TensorFacts.local_shape": _CUT,
    "TensorFacts.storage": "places in memory, numbered by this rank",
    "UnitFacts.domains": "the domain of each parameter is compared",
    "UnitFacts.mesh": _NUMBER,
    "UnitFacts.name": "the name of its row",
    "UnitFacts.parameter_count": _FOLLOWS,
    "UnitFacts.pending_all_gather": _MOMENT,
    "UnitFacts.reduction": _NUMBER,
    "UnitFacts.unsharded": _MOMENT,
    "ValuesFacts": "statistics of the part that this rank holds; V003 compares replicas bit by bit",
}
"""Facts that ranks which work together need not share, by class or `Class.field`, and why."""

_OWN_SETTINGS = frozenset({"name_or_path", "rank", "local_rank", "global_rank", "device", "transformers_version"})
"""Keys of a configuration that name a place or a rank, with or without a leading underscore."""

_NOT_HYPERPARAMETERS = frozenset({"params", "param_names"})
_DEVICE_NUMBER = re.compile(r":[0-9]+$")


def key_of(kind: str, name: str) -> str:
    """The key of a row: what it is a fact of."""
    return f"{kind} {name}"


def kind_and_name(key: str) -> tuple[str, str]:
    """The two parts of a key."""
    kind, _, name = key.partition(" ")
    return kind, name


def text_of(value: object) -> str:
    """A fact as a text: equal texts for equal facts. A long one is cut, with a digest of the whole."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool) or value is None:
        text = {True: "yes", False: "no", None: "none"}[value]
    elif isinstance(value, (int, float)):
        text = repr(value)
    else:
        text = msgspec.json.encode(value, enc_hook=encode_hook, order="sorted").decode()
    if len(text) <= _LONG:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()
    return f"{text[: _LONG - 20]}... ({digest})"


def fields_of(record: Any) -> Row:
    """The fields of a record that are not of one rank, as texts."""
    kind = type(record).__name__
    return {
        name: text_of(getattr(record, name))
        for name in (item.name for item in attrs.fields(type(record)))
        if f"{kind}.{name}" not in OF_ONE_RANK
    }


def fact_rows(facts: Facts) -> Rows:
    """Every fact of this rank that the ranks it works with must share."""
    rows: Rows = {}
    if facts.sharding is not None:
        rows.update((key_of("parameter", name), row) for name, row in parameter_rows(facts.sharding).items())
        rows.update(_unit_rows(facts.sharding))
        rows[key_of("model", "<sharding>")] = {"expert_axes": text_of(facts.sharding.expert_axes)}
    if facts.model is not None:
        rows.update(_model_rows(facts.model))
    if facts.optimizer is not None:
        rows.update(_optimizer_rows(facts.optimizer))
    rows.update(_declared_rows(facts))
    return rows


def parameter_rows(sharding: ShardingFacts) -> Rows:
    """
    The rows of the parameters by name; a second record of one name is told apart by a number.

    The place of a parameter among those of its unit is part of it: units pack their parameters one after another, so
    that ranks which pack them in another order exchange one parameter's elements for another's.
    """
    rows: Rows = {}
    places: Counter[int | None] = Counter()
    for record in sharding.parameters:
        name, number = record.fqn, 2
        while name in rows:
            name, number = f"{record.fqn} ({number})", number + 1
        place = "" if record.unit is None else str(places[record.unit])
        places[record.unit] += 1
        rows[name] = _parameter_row(sharding, record, place)
    return rows


def _parameter_row(sharding: ShardingFacts, record: OwnershipFacts, place: str) -> Row:
    layout = sharding.layout_of(record)
    mesh = sharding.mesh_text(layout.mesh if layout.mesh is not None else layout.source_mesh)
    placements = layout.placements or layout.source_placements
    source = sharding.mesh_text(layout.source_mesh), ", ".join(placement_texts(layout.source_placements))
    return {
        "global_shape": str(list(layout.global_shape)),
        "dtype": record.dtype,
        "device": _DEVICE_NUMBER.sub("", record.device),
        "owner": record.owner,
        "domain": record.domain if is_known(record.domain) else "unknown",
        "mesh": mesh,
        "placements": ", ".join(placement_texts(placements)) or "none",
        "source": " ".join(source),
        "data_dim": text_of(layout.data_dim),
        "requires_grad": str(record.requires_grad),
        "replaced": text_of(record.replaced),
        "marks": text_of(record.marks) if record.marks else "none",
        "place_in_unit": place,
    }


def _unit_rows(sharding: ShardingFacts) -> Iterator[tuple[str, Row]]:
    for unit in sharding.units:
        yield key_of("unit", unit.name), _unit_row(sharding, unit)


def _unit_row(sharding: ShardingFacts, unit: UnitFacts) -> Row:
    reduction = ReductionFacts() if unit.reduction is None else sharding.reductions[unit.reduction]
    return fields_of(unit) | {
        "mesh": sharding.mesh_text(unit.mesh),
        "divisor": text_of(reduction.divisor),
        "reduced_over": "unknown" if reduction.ranks is None else f"{len(reduction.ranks)} ranks",
    }


def _model_rows(model: ModelFacts) -> Iterator[tuple[str, Row]]:
    apart = ("config", "modules", "tensors", "counts", "sample")
    yield (
        key_of("model", "<model>"),
        {item.name: text_of(getattr(model, item.name)) for item in attrs.fields(ModelFacts) if item.name not in apart},
    )
    for key, value in (model.config or {}).items():
        if key.lstrip("_") not in _OWN_SETTINGS:
            yield key_of("config", key), {"value": text_of(value)}
    for module in model.modules:
        row = fields_of(module)
        what = "constant" if module.qualified_type.startswith("torch.nn.") else "setting"
        row.update((f"{what} {name}", text_of(value)) for name, value in module.settings.items())
        row.pop("settings")
        yield key_of("module", module.fqn or "<root>"), row
    for buffer in model.buffers:
        row = fields_of(buffer)
        row["device"] = _DEVICE_NUMBER.sub("", buffer.device)
        yield key_of("buffer" if buffer.persistent else "cache", buffer.fqn), row


def _optimizer_rows(optimizer: OptimizerFacts) -> Iterator[tuple[str, Row]]:
    yield key_of("optimizer", "<optimizer>"), {"unread": text_of(optimizer.unread)}
    for instance in optimizer.optimizers:
        yield key_of("optimizer", instance.name), fields_of(instance)
    for group in optimizer.groups:
        place = key_of("group", f"{optimizer.optimizers[group.optimizer].name}[{group.position}]")
        options = {name: value for name, value in group.options.items() if name not in _NOT_HYPERPARAMETERS}
        yield place, {"name": group.name} | {name: text_of(value) for name, value in options.items()}
    for held in optimizer.held:
        parameter = optimizer.parameter_of(held)
        if parameter is not None:
            group = optimizer.group_of(held)
            place = f"{optimizer.optimizers[group.optimizer].name}[{group.position}]"
            yield key_of("held", parameter.fqn), {"group": place, "main": text_of(held.main)}


def _declared_rows(facts: Facts) -> Iterator[tuple[str, Row]]:
    """What was declared and what surrounds the model: one row each, its fields cut short where they are long."""
    if facts.contract is not None:
        yield key_of("contract", "<contract>"), fields_of(facts.contract)
    if facts.data is not None:
        yield key_of("data", "<data pipeline>"), fields_of(facts.data)
    if facts.checkpoint is not None:
        yield key_of("checkpoint", "<checkpoint>"), fields_of(facts.checkpoint)
    numerics = facts.environment.numerics
    yield key_of("environment", "<environment>"), {name: text_of(value) for name, value in numerics.items()}


def runtime_rows(facts: Facts) -> Rows:
    """
    What a traced step must have in common on ranks that work together, by name: which units ran, which gradients came.

    Experts are left out of the gradients: another rank's experts may be those that got the tokens. So are the original
    parameters of FSDP1, of which a rank may hold nothing.
    """
    runtime = facts.runtime
    if runtime is None:
        return {}
    forwarded = runtime.forwarded()
    rows: Rows = {
        f"unit {unit.name}": {"entered": text_of(unit.name in forwarded)} for unit in runtime.units if unit.observed
    }
    if runtime.raised:
        return rows
    records = facts.sharding.parameters if facts.sharding else ()
    experts = {record.fqn for record in records if not is_known(record.domain) or record.domain == EXPERT}
    parts = {name for unit in runtime.units if unit.kind == "fsdp1" for name in unit.parameters}
    parts = {name for name in parts if not name.endswith("_flat_param")}
    for gradient in runtime.gradients:
        if gradient.fqn not in experts and gradient.fqn not in parts:
            rows[f"gradient {gradient.fqn}"] = {"gradient": text_of(gradient.present > 0)}
    return rows
