"""The whole snapshot: its sections, and why a section is absent."""

from __future__ import annotations

import enum
from typing import Any, Literal, overload

from attrs import field, fields, frozen

from .checkpoint import CheckpointFacts
from .contract import ContractFacts, DataFacts
from .frozen import EMPTY, FrozenDict
from .load import LoadFacts
from .model import ModelFacts
from .optimizer import OptimizerFacts
from .plan import PlanFacts
from .ranks import RanksFacts
from .runtime import RuntimeFacts
from .sharding import ShardingFacts
from .unknown import NotEvaluated, UnknownFact
from .values import ValuesFacts

FACTS_VERSION = 1
PACK_SECTION = "pack:"
"""What the section of a pack's own facts begins with; the pack's name follows."""


class Section(enum.Enum):
    """A part of the facts that may be absent."""

    BUILD = "build"
    MODEL = "model"
    CHECKPOINT = "checkpoint"
    PLAN = "plan"
    LOAD = "load"
    CONTRACT = "contract"
    DATA = "data"
    SHARDING = "sharding"
    RUNTIME = "runtime"
    RANKS = "ranks"
    OPTIMIZER = "optimizer"
    VALUES = "values"


@frozen(kw_only=True)
class BuildFacts:
    """
    The `build` section: how the model came to be. Present when shardlint itself called a builder.

    `failed` with `error_type`, `error` and the innermost frame of the user's code, when building raised.
    """

    builder: str
    failed: bool = False
    error_type: str = ""
    error: str = ""
    frame: str = ""


@frozen(kw_only=True)
class Environment:
    """
    Where the snapshot was taken: versions by distribution name, and the place in the job.

    `numerics` are the settings of torch and of the environment that change results.
    """

    versions: FrozenDict = EMPTY
    numerics: FrozenDict = EMPTY
    rank: int = 0
    world_size: int = 1


@frozen(kw_only=True)
class CollectionProblem:
    """
    A collector that failed, so that its section is absent or incomplete: such a run cannot be trusted (SL002).

    `pack` is empty for shardlint's own collectors. `frame` is the innermost frame of the collector's code.
    """

    collector: str
    section: str
    error_type: str
    error: str
    pack: str = ""
    frame: str = ""


def _coarse_hash(value: Any) -> int:
    try:
        return hash(value)
    except UnknownFact:
        return 0


@frozen(kw_only=True)
class Facts:
    """
    The frozen snapshot that rules see. A section that is None is absent; `absent` says why.

    `packs` holds by the name of a pack what the pack collected of its own (`extra`).

    Source: a collector, or a facts file (`shardlint snapshot TARGET -o FILE`).
    """

    version: int = FACTS_VERSION
    target: str = ""
    environment: Environment = field(factory=Environment)
    build: BuildFacts | None = None
    model: ModelFacts | None = None
    checkpoint: CheckpointFacts | None = None
    plan: PlanFacts | None = None
    load: LoadFacts | None = None
    contract: ContractFacts | None = None
    data: DataFacts | None = None
    sharding: ShardingFacts | None = None
    runtime: RuntimeFacts | None = None
    ranks: RanksFacts | None = None
    optimizer: OptimizerFacts | None = None
    values: ValuesFacts | None = None
    packs: FrozenDict = EMPTY
    absent: FrozenDict = EMPTY
    problems: tuple[CollectionProblem, ...] = ()

    def __hash__(self) -> int:
        """A section in which something is not known counts as any other such: the hash is coarser, not wrong."""
        return hash(tuple(_coarse_hash(getattr(self, attribute.name)) for attribute in fields(Facts)))

    def has(self, section: Section) -> bool:
        """Whether the section is present."""
        return getattr(self, section.value) is not None

    def why_absent(self, section: Section) -> str:
        """One clause that says why the section is absent."""
        return str(self.absent.get(section.value, f"no {section.value} facts were collected"))

    def extra(self, pack: str) -> FrozenDict:
        """What the pack of that name collected of its own. Raises `NotEvaluated`, saying why, when it did not."""
        facts = self.packs.get(pack)
        if facts is None:
            section = f"{PACK_SECTION}{pack}"
            raise NotEvaluated(str(self.absent.get(section, f"no facts of the pack {pack} were collected")))
        assert isinstance(facts, FrozenDict)
        return facts

    @overload
    def require(self, section: Literal[Section.BUILD]) -> BuildFacts: ...
    @overload
    def require(self, section: Literal[Section.MODEL]) -> ModelFacts: ...
    @overload
    def require(self, section: Literal[Section.CHECKPOINT]) -> CheckpointFacts: ...
    @overload
    def require(self, section: Literal[Section.PLAN]) -> PlanFacts: ...
    @overload
    def require(self, section: Literal[Section.LOAD]) -> LoadFacts: ...
    @overload
    def require(self, section: Literal[Section.CONTRACT]) -> ContractFacts: ...
    @overload
    def require(self, section: Literal[Section.DATA]) -> DataFacts: ...
    @overload
    def require(self, section: Literal[Section.SHARDING]) -> ShardingFacts: ...
    @overload
    def require(self, section: Literal[Section.RUNTIME]) -> RuntimeFacts: ...
    @overload
    def require(self, section: Literal[Section.RANKS]) -> RanksFacts: ...
    @overload
    def require(self, section: Literal[Section.OPTIMIZER]) -> OptimizerFacts: ...
    @overload
    def require(self, section: Literal[Section.VALUES]) -> ValuesFacts: ...
    def require(self, section: Section) -> Any:
        """Return the section. Raises `NotEvaluated`, saying why it is absent, when it is."""
        value = getattr(self, section.value)
        if value is None:
            raise NotEvaluated(self.why_absent(section))
        return value
