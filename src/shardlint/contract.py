"""
The contract: what a model's owner declares about it. Public, and without torch.

A contract is looked up by `config.model_type`, then by each of `config.architectures`, in the packs
(`shardlint_contracts`); it can also stand in the configuration file, be named on the command line
(`--contract package.module:name`) or be handed over in `Target.contract`. Each of those wins over the packs.

A glob is read in the one language of shardlint: `*` stands for one dotted segment or a part of one, `**` for any number
of segments, none included (`shardlint.names.compile_glob`). `model.*.bias` covers `model.norm.bias`, `model.**.bias`
also `model.layers.0.mlp.bias`.

Every class here is validated when it is built: empty names, empty globs, unknown values and checkers that cannot be
called raise `ContractError`, which names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import fields, frozen

from .contract_values import (
    COMPARISONS,
    IMPORT_PATH,
    LIFECYCLE_PHASES,
    PROBE_STAGES,
    ContractError,
    are_stages,
    callable_field,
    choice_field,
    choices_field,
    flag_field,
    groups_field,
    is_comparison,
    members_field,
    name_field,
    names_by_key_field,
    names_field,
    optional_flag_field,
    part_field,
    plain_field,
    setting_of,
    shapes_field,
    shown,
    text_field,
)
from .facts import EMPTY, FrozenDict

__all__ = [
    "COMPARISONS",
    "IMPORT_PATH",
    "LIFECYCLE_PHASES",
    "OPEN_FIELDS",
    "PROBE_STAGES",
    "SHORT_FORMS",
    "Contract",
    "ContractError",
    "ContractQuery",
    "DataPipeline",
    "DataSemantics",
    "DataStage",
    "Invariant",
    "InvariantContext",
    "OpenField",
    "ParityCase",
    "Probe",
    "Recipe",
    "Replacement",
    "SharedState",
    "TopologyConstraint",
    "contract_from_mapping",
]


@frozen(kw_only=True)
class Probe:
    """
    A parameter that must exist: a case-sensitive glob over parameter FQNs.

    A `required` probe that matches nothing is V001. `stages` say when its values are to be compared (empty: always),
    `comparison` how, and `replica_check` whether replicas of it must agree between ranks.
    """

    glob: str = name_field("Case-sensitive glob over parameter FQNs.", glob=True)
    required: bool = flag_field("Whether it is an error when it matches no parameter.", default=True)
    stages: tuple[str, ...] = choices_field(
        "When values are compared. Without effect (D109).", PROBE_STAGES, are_stages
    )
    comparison: str = choice_field(
        "How values are compared. Without effect (D109).", COMPARISONS, is_comparison, "exact"
    )
    replica_check: bool = flag_field("Whether replicas must be equal. Without effect (D109).", default=False)


@frozen(kw_only=True)
class InvariantContext:
    """What a checker that takes a second argument is told: the invariant's name and its phase."""

    name: str
    phase: str


@frozen(kw_only=True)
class Invariant:
    """
    Something that must hold of the model in a lifecycle phase.

    `checker` is called with the model, and with an `InvariantContext` if it takes a second argument (or one that is
    called `context`), without gradients, while facts are collected: it must not change the model.
    True and None pass. A mapping fails and becomes the finding's facts; anything else fails and is shown as `result`.
    It may be an import path `package.module:name`. `phase` is one of `LIFECYCLE_PHASES`.
    """

    name: str = name_field("The invariant's name.")
    checker: Callable[..., Any] | str = callable_field("The function that checks it, as package.module:name.")
    phase: str = name_field(f"{', '.join(LIFECYCLE_PHASES)}; D101 reports any other.", default="structure")


@frozen(kw_only=True)
class Recipe:
    """
    How the buffers that `buffer` (a glob over buffer FQNs) matches are computed from the configuration.

    `recipe` is called with the model and the buffer's FQN, without gradients, while facts are collected, and returns a
    new tensor of the buffer's shape: it must not change the model, nor return the buffer itself. It may be an import
    path `package.module:name`. Of several recipes that match a buffer the first computes it.
    """

    buffer: str = name_field("Glob over buffer FQNs.", glob=True)
    recipe: Callable[[Any, str], Any] | str = callable_field(
        "The function that computes such a buffer, as package.module:name."
    )


@frozen(kw_only=True)
class DataSemantics:
    """
    What the model expects of its batches.

    `forward_fields` are arguments that every forward must get; `runtime_fields` those that the pipeline adds at run
    time; `context_parallel_replicated` those that are whole on every rank of context parallelism. `modality_fields`
    and `modality_parameters` give for each modality its fields and the globs of its parameters. `labels_shifted` says
    whether labels arrive shifted, None when the model does not care.
    """

    forward_fields: tuple[str, ...] = names_field("Fields that every forward call must have.")
    runtime_fields: tuple[str, ...] = names_field("Fields that the pipeline must provide at run time.")
    context_parallel_replicated: tuple[str, ...] = names_field(
        "Fields that are replicated along context parallelism. Without effect (D109)."
    )
    modality_fields: FrozenDict = names_by_key_field("The fields of each modality.")
    modality_parameters: FrozenDict = names_by_key_field("Globs of the parameters of each modality.", globs=True)
    labels_shifted: bool | None = optional_flag_field("Whether the pipeline shifts the labels.")
    deterministic_replay: bool = flag_field("Whether batches must be replayable. Without effect (D109).", default=False)
    processor_revision_required: bool = flag_field("Whether the processor must be pinned.", default=False)


@frozen(kw_only=True)
class SharedState:
    """A state that some modules (globs over FQNs) produce and others consume during a step."""

    name: str = name_field("The state's name.")
    producers: tuple[str, ...] = names_field("The modules that produce it.", globs=True, some=True)
    consumers: tuple[str, ...] = names_field("The modules that consume it.", globs=True, some=True)

    def __attrs_post_init__(self) -> None:
        for name in ("producers", "consumers"):
            if not getattr(self, name):
                raise ContractError(f"SharedState.{name}", "expected at least one module glob, got none")


@frozen(kw_only=True)
class Replacement:
    """
    A module replacement that building was meant to make.

    `pattern` is a glob over module FQNs, or over class names (its own or those of its bases); `replacement` a glob
    over the name of the class that must stand there now. A replacement that no module of the final tree satisfies is
    D103.
    """

    pattern: str = name_field("Glob over module FQNs or class names: what was to be replaced.", glob=True)
    replacement: str = name_field("Glob over the class name that must stand there.", glob=True, default="*")


@frozen
class OpenField:
    """A field that a class leaves open and the settings know. `required` says whether it must be there."""

    name: str
    kind: str
    meaning: str
    required: bool = False


@frozen(kw_only=True)
class TopologyConstraint:
    """A constraint on the topology: a name, and whatever plain fields say what it demands (`axis`, `divides`)."""

    name: str = name_field("The constraint's name.")
    fields: FrozenDict = plain_field()


@frozen(kw_only=True)
class ParityCase:
    """A module parity case: a name, and whatever plain fields describe it (`module`, `reference`)."""

    name: str = name_field("The case's name.")
    fields: FrozenDict = plain_field()


SHORT_FORMS: Mapping[type, str] = {Probe: "glob", Replacement: "pattern"}
"""What a bare string in place of the mapping stands for."""

OPEN_FIELDS: Mapping[type, tuple[OpenField, ...]] = {
    TopologyConstraint: (
        OpenField("axis", "name", "The mesh axis.", required=True),
        OpenField("divides", "number or name", "What its size must divide."),
        OpenField("minimum", "size", "The smallest size."),
        OpenField("maximum", "size", "The largest size."),
    ),
    ParityCase: (
        OpenField("module", "glob", "Glob over module FQNs.", required=True),
        OpenField("reference", "import", "What computes the same, as package.module:name.", required=True),
        OpenField("comparison", "comparison", "How values are compared."),
    ),
}
"""Which of the fields that a class leaves open the settings know."""


@frozen(kw_only=True)
class Contract:
    """
    What a model's owner declares about it. Every part is optional.

    `training_only_targets` are globs over live tensors that no checkpoint needs to hold, `inference_only_sources`
    globs over checkpoint keys that training does not want. `placeholders` are globs over class names that must not
    stand in the final tree; `lazy_buffers` globs over tensors that may be meta until first used. `ties` are groups of
    globs over tensors, each group one tensor under several names. `recipes` say how buffers are computed that D404
    compares. `logical_shapes` gives, by glob, the global shape of tensors whose storage is padded beyond it: the rest
    must be zero.
    """

    name: str = text_field("The contract's name, for reports.")
    probes: tuple[Probe, ...] = members_field(Probe, "Parameters that must be there.")
    invariants: tuple[Invariant, ...] = members_field(
        Invariant, "Conditions on the live model, each with its checker.", unique="name"
    )
    training_only_targets: tuple[str, ...] = names_field(
        "Live tensors that have no checkpoint source on purpose.", globs=True
    )
    inference_only_sources: tuple[str, ...] = names_field(
        "Checkpoint keys that have no live target on purpose.", globs=True
    )
    logical_shapes: FrozenDict = shapes_field(
        "The global shape without padding of tensors whose storage is larger, by glob."
    )
    data: DataSemantics | None = part_field(DataSemantics, "What the model expects of its batches.")
    shared_state: tuple[SharedState, ...] = members_field(
        SharedState, "State that modules share during a step.", unique="name"
    )
    topology: tuple[TopologyConstraint, ...] = members_field(
        TopologyConstraint, "Bounds on the sizes of mesh axes, for D318."
    )
    parity_cases: tuple[ParityCase, ...] = members_field(
        ParityCase, "Modules that must compute what a reference does. Without effect (D109).", unique="name"
    )
    replacements: tuple[Replacement, ...] = members_field(Replacement, "Module replacements that must have happened.")
    placeholders: tuple[str, ...] = names_field(
        "Globs over the names of classes that must not be left in the final tree.", globs=True
    )
    lazy_buffers: tuple[str, ...] = names_field(
        "Buffers that are built at first use, so that meta is right before.", globs=True
    )
    ties: tuple[tuple[str, ...], ...] = groups_field(
        "Groups of globs over tensors: each group is one tensor under several names."
    )
    recipes: tuple[Recipe, ...] = members_field(Recipe, "How buffers are computed from the configuration, for D404.")

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.data, (DataSemantics, type(None))):
            raise ContractError("Contract.data", f"expected DataSemantics, got {shown(self.data)}")
        for attribute in fields(Contract):
            unique = setting_of(attribute).unique
            values = [getattr(member, unique) for member in getattr(self, attribute.name)] if unique else []
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ContractError(
                    f"Contract.{attribute.name}", f"expected unique names, got {', '.join(twice)} twice"
                )


@frozen(kw_only=True)
class DataStage:
    """One stage of the data pipeline and the forward fields that it fills."""

    name: str = name_field("The stage's name.")
    fields: tuple[str, ...] = names_field()


@frozen(kw_only=True)
class DataPipeline:
    """
    The data pipeline as it was resolved for this run, handed over in `Target.data`.

    `runtime_fields` are the fields that it provides at run time; `labels_shifted` says whether it shifts labels,
    None when that is not known; `processor_revision` pins the processor or tokenizer.
    """

    stages: tuple[DataStage, ...] = members_field(DataStage)
    runtime_fields: tuple[str, ...] = names_field()
    labels_shifted: bool | None = optional_flag_field()
    processor_revision: str | None = None


@frozen(kw_only=True)
class ContractQuery:
    """
    What a pack is asked for: a contract for the model that `key` names.

    `kind` is `model_type` or `architecture`; `config` is the model's configuration as plain values.
    """

    key: str
    kind: str
    config: FrozenDict = EMPTY


def contract_from_mapping(data: Mapping[str, Any], where: str = "contract") -> Contract:
    """
    Build a contract from plain data, as a configuration file holds it (keys with hyphens or underscores).

    Raises `ContractError` with every problem found; each place begins with `where`.
    """
    from .contract_mapping import read_contract

    return read_contract(data, where)
