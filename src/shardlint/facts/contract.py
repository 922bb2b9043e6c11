"""The `contract` section: what the model's owner declared, and what became of each declaration."""

from __future__ import annotations

from attrs import frozen

from .frozen import EMPTY, FrozenDict


@frozen(kw_only=True)
class ProbeFacts:
    """A parameter probe: a case-sensitive glob over parameter FQNs (`shardlint.names.compile_glob`)."""

    glob: str
    required: bool = True
    stages: tuple[str, ...] = ()
    comparison: str = "exact"
    replica_check: bool = False


@frozen(kw_only=True)
class InvariantOutcome:
    """
    A declared invariant after its checker ran.

    `status` is passed, failed, raised, unsupported-phase or not-evaluated. `facts` is what the checker returned.
    """

    name: str
    phase: str
    status: str
    facts: FrozenDict = EMPTY
    error: str | None = None


@frozen(kw_only=True)
class ReplacementFacts:
    """A declared module replacement and the modules of the final tree that it produced."""

    pattern: str
    replacement: str
    matched: tuple[str, ...] = ()


@frozen(kw_only=True)
class ContractProblem:
    """A contract, or a part of it, that cannot be used. `where` is a provider or a field (`probes[0].glob`)."""

    where: str
    error: str


@frozen(kw_only=True)
class DataSemanticsFacts:
    """What the model expects of its batches."""

    forward_fields: tuple[str, ...] = ()
    runtime_fields: tuple[str, ...] = ()
    context_parallel_replicated: tuple[str, ...] = ()
    modality_fields: FrozenDict = EMPTY  # modality -> fields
    modality_parameters: FrozenDict = EMPTY  # modality -> parameter globs
    labels_shifted: bool | None = None
    deterministic_replay: bool = False
    processor_revision_required: bool = False


@frozen(kw_only=True)
class SharedStateFacts:
    """A state that one module produces and others consume during a step."""

    name: str
    producers: tuple[str, ...]
    consumers: tuple[str, ...]


@frozen(kw_only=True)
class ContractFacts:
    """A contract as data. `source` names its provider (`package.module:name`, a config file and line, ...), `replaces`
    the pack whose contract would have been taken otherwise.
    """

    source: str
    replaces: str = ""
    name: str = ""
    probes: tuple[ProbeFacts, ...] = ()
    invariants: tuple[InvariantOutcome, ...] = ()
    training_only_targets: tuple[str, ...] = ()
    inference_only_sources: tuple[str, ...] = ()
    data: DataSemanticsFacts | None = None
    shared_state: tuple[SharedStateFacts, ...] = ()
    topology: tuple[FrozenDict, ...] = ()
    parity_cases: tuple[FrozenDict, ...] = ()
    replacements: tuple[ReplacementFacts, ...] = ()
    placeholders: tuple[str, ...] = ()
    lazy_buffers: tuple[str, ...] = ()
    ties: tuple[tuple[str, ...], ...] = ()  # groups of globs over tensors that are one tensor
    recipes: tuple[str, ...] = ()  # globs over the buffers that they compute
    logical_shapes: FrozenDict = EMPTY  # glob over tensors -> global shape without padding
    problems: tuple[ContractProblem, ...] = ()


@frozen(kw_only=True)
class DataStageFacts:
    """One stage of the data pipeline and the forward fields that it claims."""

    name: str
    fields: tuple[str, ...]


@frozen(kw_only=True)
class DataFacts:
    """The `data` section: the resolved data pipeline, as its owner described it."""

    stages: tuple[DataStageFacts, ...] = ()
    runtime_fields: tuple[str, ...] = ()
    labels_shifted: bool | None = None
    processor_revision: str | None = None
