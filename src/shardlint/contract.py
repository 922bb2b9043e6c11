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

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import field, frozen

from .facts import EMPTY, FrozenDict

LIFECYCLE_PHASES = ("structure", "materialization", "checkpoint", "runtime")
"""The phases of an invariant. One that declares another phase is not evaluated, and reported as D101."""

PROBE_STAGES = ("build", "load", "train", "save")
"""When a probe is to be compared: after building, after loading, after a training step, after saving."""

COMPARISONS = ("exact", "numeric")
"""How two values are compared: bit by bit, or as numbers."""

IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")


class ContractError(ValueError):
    """
    A contract, or a part of it, that cannot be used.

    `where` is the field (`probes[0].glob`), `problem` what was expected and what was found. `problems` holds all of
    them as pairs when a whole mapping was read.
    """

    def __init__(self, where: str, problem: str, problems: Iterable[tuple[str, str]] = ()) -> None:
        self.where = where
        self.problem = problem
        self.problems = tuple(problems) or ((where, problem),)
        super().__init__("\n".join(f"{place}: {text}" for place, text in self.problems))


def _shown(value: object) -> str:
    return f"{value!r} ({type(value).__name__})"


def _fail(instance: object, attribute: Any, expected: str, value: object) -> ContractError:
    return ContractError(f"{type(instance).__name__}.{attribute.name}", f"expected {expected}, got {_shown(value)}")


def _name(instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise _fail(instance, attribute, "a name that is not empty", value)


def _optional_text(instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, str):
        raise _fail(instance, attribute, "a string", value)


def _bool(instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, bool):
        raise _fail(instance, attribute, "true or false", value)


def _optional_bool(instance: object, attribute: Any, value: Any) -> None:
    if value is not None:
        _bool(instance, attribute, value)


def _sequence(instance: object, attribute: Any, value: Any) -> tuple[object, ...]:
    if not isinstance(value, tuple):
        raise _fail(instance, attribute, "a sequence", value)
    return value


def _names(instance: object, attribute: Any, value: Any) -> None:
    for item in _sequence(instance, attribute, value):
        if not isinstance(item, str) or not item.strip():
            raise _fail(instance, attribute, "names or globs that are not empty", item)


def _stages(instance: object, attribute: Any, value: Any) -> None:
    for item in _sequence(instance, attribute, value):
        if item not in PROBE_STAGES:
            raise _fail(instance, attribute, f"stages among {', '.join(PROBE_STAGES)}", item)


def _groups(instance: object, attribute: Any, value: Any) -> None:
    for group in _sequence(instance, attribute, value):
        if not isinstance(group, tuple) or len(group) < 2:
            raise _fail(instance, attribute, "groups of at least two names or globs", group)
        _names(instance, attribute, group)


def _comparison(instance: object, attribute: Any, value: Any) -> None:
    if value not in COMPARISONS:
        raise _fail(instance, attribute, f"one of {', '.join(COMPARISONS)}", value)


def _callable(instance: object, attribute: Any, value: Any) -> None:
    if callable(value) or (isinstance(value, str) and IMPORT_PATH.match(value)):
        return
    raise _fail(instance, attribute, "a callable or an import path `package.module:name`", value)


def _shapes(instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, FrozenDict):
        raise _fail(instance, attribute, "a mapping of globs to shapes", value)
    for glob, shape in value.items():
        sizes = shape if isinstance(shape, tuple) else ("",)
        if not glob.strip() or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
            raise _fail(instance, attribute, f"a shape of whole numbers above 0 for {glob!r}", shape)


def _names_by_key(instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, FrozenDict):
        raise _fail(instance, attribute, "a mapping of names to sequences of names", value)
    for key, names in value.items():
        if not key.strip():
            raise _fail(instance, attribute, "keys that are not empty", key)
        if not isinstance(names, tuple) or not names:
            raise _fail(instance, attribute, f"a sequence of names for {key!r}", names)
        _names(instance, attribute, names)


def _as_tuple(value: Any) -> Any:
    """A sequence or set as a tuple; one string is one name, not its letters. Anything else is for the validator."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value, key=repr))
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, Mapping) else value


def _as_groups(value: Any) -> Any:
    """Groups of names as tuples; a mapping of names to names gives pairs. Anything else is for the validator."""
    if isinstance(value, Mapping):
        return tuple((name, partner) for name, partner in value.items())
    groups = _as_tuple(value)
    return tuple(map(_as_tuple, groups)) if isinstance(groups, tuple) else groups


def _as_frozen(value: Any) -> Any:
    """A mapping with frozen sequences of names. Anything else is for the validator."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return value
    try:
        return FrozenDict({key: _as_tuple(names) for key, names in value.items()})
    except TypeError:  # values that are no plain data
        return value


def _as_plain(value: Any) -> Any:
    """A mapping of plain values, frozen. Anything else is for the validator."""
    try:
        return FrozenDict(value) if isinstance(value, Mapping) else value
    except TypeError:  # keys that are no strings, values that are no plain data
        return value


def _plain_mapping(instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, FrozenDict):
        raise _fail(instance, attribute, "a mapping of names to plain values", value)


def _members(kind: type) -> Callable[[object, Any, Any], None]:
    def check(instance: object, attribute: Any, value: Any) -> None:
        for index, item in enumerate(_sequence(instance, attribute, value)):
            if not isinstance(item, kind):
                where = f"{type(instance).__name__}.{attribute.name}[{index}]"
                raise ContractError(where, f"expected a {kind.__name__}, got {_shown(item)}")

    return check


def _names_field() -> Any:
    return field(default=(), converter=_as_tuple, validator=_names)


def _members_field(kind: type) -> Any:
    return field(default=(), converter=_as_tuple, validator=_members(kind))


@frozen(kw_only=True)
class Probe:
    """
    A parameter that must exist: a case-sensitive glob over parameter FQNs.

    A `required` probe that matches nothing is V001. `stages` say when its values are to be compared (empty: always),
    `comparison` how, and `replica_check` whether replicas of it must agree between ranks.
    """

    glob: str = field(validator=_name)
    required: bool = field(default=True, validator=_bool)
    stages: tuple[str, ...] = field(default=(), converter=_as_tuple, validator=_stages)
    comparison: str = field(default="exact", validator=_comparison)
    replica_check: bool = field(default=False, validator=_bool)


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

    name: str = field(validator=_name)
    checker: Callable[..., Any] | str = field(validator=_callable)
    phase: str = field(default="structure", validator=_name)


@frozen(kw_only=True)
class Recipe:
    """
    How the buffers that `buffer` (a glob over buffer FQNs) matches are computed from the configuration.

    `recipe` is called with the model and the buffer's FQN, without gradients, while facts are collected, and returns a
    new tensor of the buffer's shape: it must not change the model, nor return the buffer itself. It may be an import
    path `package.module:name`. Of several recipes that match a buffer the first computes it.
    """

    buffer: str = field(validator=_name)
    recipe: Callable[[Any, str], Any] | str = field(validator=_callable)


@frozen(kw_only=True)
class DataSemantics:
    """
    What the model expects of its batches.

    `forward_fields` are arguments that every forward must get; `runtime_fields` those that the pipeline adds at run
    time; `context_parallel_replicated` those that are whole on every rank of context parallelism. `modality_fields`
    and `modality_parameters` give for each modality its fields and the globs of its parameters. `labels_shifted` says
    whether labels arrive shifted, None when the model does not care.
    """

    forward_fields: tuple[str, ...] = _names_field()
    runtime_fields: tuple[str, ...] = _names_field()
    context_parallel_replicated: tuple[str, ...] = _names_field()
    modality_fields: FrozenDict = field(default=EMPTY, converter=_as_frozen, validator=_names_by_key)
    modality_parameters: FrozenDict = field(default=EMPTY, converter=_as_frozen, validator=_names_by_key)
    labels_shifted: bool | None = field(default=None, validator=_optional_bool)
    deterministic_replay: bool = field(default=False, validator=_bool)
    processor_revision_required: bool = field(default=False, validator=_bool)


@frozen(kw_only=True)
class SharedState:
    """A state that some modules (globs over FQNs) produce and others consume during a step."""

    name: str = field(validator=_name)
    producers: tuple[str, ...] = _names_field()
    consumers: tuple[str, ...] = _names_field()

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

    pattern: str = field(validator=_name)
    replacement: str = field(default="*", validator=_name)


@frozen(kw_only=True)
class TopologyConstraint:
    """A constraint on the topology: a name, and whatever plain fields say what it demands (`axis`, `divides`)."""

    name: str = field(validator=_name)
    fields: FrozenDict = field(default=EMPTY, converter=_as_plain, validator=_plain_mapping)


@frozen(kw_only=True)
class ParityCase:
    """A module parity case: a name, and whatever plain fields describe it (`module`, `reference`)."""

    name: str = field(validator=_name)
    fields: FrozenDict = field(default=EMPTY, converter=_as_plain, validator=_plain_mapping)


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

    name: str = field(default="", validator=_optional_text)
    probes: tuple[Probe, ...] = _members_field(Probe)
    invariants: tuple[Invariant, ...] = _members_field(Invariant)
    training_only_targets: tuple[str, ...] = _names_field()
    logical_shapes: FrozenDict = field(default=EMPTY, converter=_as_plain, validator=_shapes)
    inference_only_sources: tuple[str, ...] = _names_field()
    data: DataSemantics | None = None
    shared_state: tuple[SharedState, ...] = _members_field(SharedState)
    topology: tuple[TopologyConstraint, ...] = _members_field(TopologyConstraint)
    parity_cases: tuple[ParityCase, ...] = _members_field(ParityCase)
    replacements: tuple[Replacement, ...] = _members_field(Replacement)
    placeholders: tuple[str, ...] = _names_field()
    lazy_buffers: tuple[str, ...] = _names_field()
    ties: tuple[tuple[str, ...], ...] = field(default=(), converter=_as_groups, validator=_groups)
    recipes: tuple[Recipe, ...] = _members_field(Recipe)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.data, (DataSemantics, type(None))):
            raise ContractError("Contract.data", f"expected DataSemantics, got {_shown(self.data)}")
        for name in ("invariants", "shared_state", "parity_cases"):
            names = [item.name for item in getattr(self, name)]
            twice = sorted({item for item in names if names.count(item) > 1})
            if twice:
                raise ContractError(f"Contract.{name}", f"expected unique names, got {', '.join(twice)} twice")


@frozen(kw_only=True)
class DataStage:
    """One stage of the data pipeline and the forward fields that it fills."""

    name: str = field(validator=_name)
    fields: tuple[str, ...] = _names_field()


@frozen(kw_only=True)
class DataPipeline:
    """
    The data pipeline as it was resolved for this run, handed over in `Target.data`.

    `runtime_fields` are the fields that it provides at run time; `labels_shifted` says whether it shifts labels,
    None when that is not known; `processor_revision` pins the processor or tokenizer.
    """

    stages: tuple[DataStage, ...] = _members_field(DataStage)
    runtime_fields: tuple[str, ...] = _names_field()
    labels_shifted: bool | None = field(default=None, validator=_optional_bool)
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
    from ._contract_mapping import read_contract

    return read_contract(data, where)
