"""Frozen facts: what collectors produce and rules read. Nothing here imports torch."""

from .checkpoint import CheckpointFacts, EntryFacts, FileFacts, FileProblem, IndexFacts, RepeatedKey
from .contract import (
    ContractFacts,
    ContractProblem,
    DataFacts,
    DataSemanticsFacts,
    DataStageFacts,
    InvariantOutcome,
    ProbeFacts,
    ReplacementFacts,
    SharedStateFacts,
)
from .frozen import EMPTY, FrozenDict, freeze, thaw
from .load import ConversionFacts, LoadFacts, MismatchedKey
from .model import (
    WRAPPER_KINDS,
    ClassDeclaration,
    ModelCounts,
    ModelFacts,
    ModuleFacts,
    RebuildableBufferFacts,
    TensorFacts,
    TensorLayout,
    WrapperFacts,
)
from .optimizer import (
    HeldTensor,
    LiveParameter,
    OptimizerFacts,
    OptimizerInstance,
    ParameterGroup,
    StoredOptimizerFacts,
    StoredParameterState,
    TensorSpec,
    layout_text,
)
from .plan import LeftoverKey, LoadRemark, PlanFacts, RoundTrip, TensorPlan, TiePlan
from .ranks import RankDifference, RanksFacts
from .runtime import (
    SHARDING_KINDS,
    DirectUse,
    GradientFacts,
    PendingGather,
    RuntimeFacts,
    StateEvent,
    StepFacts,
    TracedUnit,
    UnitEvent,
)
from .sharding import (
    DENSE,
    EXPERT,
    LOCAL,
    ROOT,
    UNMANAGED,
    UNTRACKED,
    LayoutFacts,
    MeshFacts,
    OwnershipFacts,
    ReductionFacts,
    ShardingFacts,
    UnitFacts,
)
from .snapshot import FACTS_VERSION, BuildFacts, CollectionProblem, Environment, Facts, Section

__all__ = [
    "DENSE",
    "EMPTY",
    "EXPERT",
    "FACTS_VERSION",
    "LOCAL",
    "ROOT",
    "SHARDING_KINDS",
    "UNMANAGED",
    "UNTRACKED",
    "WRAPPER_KINDS",
    "BuildFacts",
    "CheckpointFacts",
    "ClassDeclaration",
    "CollectionProblem",
    "ContractFacts",
    "ContractProblem",
    "ConversionFacts",
    "DataFacts",
    "DataSemanticsFacts",
    "DataStageFacts",
    "DirectUse",
    "EntryFacts",
    "Environment",
    "Facts",
    "FileFacts",
    "FileProblem",
    "FrozenDict",
<<<<<<< HEAD
    "GradientFacts",
=======
    "HeldTensor",
>>>>>>> main
    "IndexFacts",
    "InvariantOutcome",
    "LayoutFacts",
    "LeftoverKey",
    "LiveParameter",
    "LoadFacts",
    "LoadRemark",
    "MeshFacts",
    "MismatchedKey",
    "ModelCounts",
    "ModelFacts",
    "ModuleFacts",
    "OptimizerFacts",
    "OptimizerInstance",
    "OwnershipFacts",
<<<<<<< HEAD
    "PendingGather",
=======
    "ParameterGroup",
>>>>>>> main
    "PlanFacts",
    "ProbeFacts",
    "RankDifference",
    "RanksFacts",
    "RebuildableBufferFacts",
    "ReductionFacts",
    "RepeatedKey",
    "ReplacementFacts",
    "RoundTrip",
    "RuntimeFacts",
    "Section",
    "ShardingFacts",
    "SharedStateFacts",
<<<<<<< HEAD
    "StateEvent",
    "StepFacts",
=======
    "StoredOptimizerFacts",
    "StoredParameterState",
>>>>>>> main
    "TensorFacts",
    "TensorLayout",
    "TensorPlan",
    "TensorSpec",
    "TiePlan",
    "TracedUnit",
    "UnitEvent",
    "UnitFacts",
    "WrapperFacts",
    "freeze",
    "layout_text",
    "thaw",
]
