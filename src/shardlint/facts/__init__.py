"""Frozen facts: what collectors produce and rules read. Nothing here imports torch."""

from .checkpoint import CheckpointFacts, EntryFacts, FileFacts, FileProblem, IndexFacts
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
    ClassDeclaration,
    ModelCounts,
    ModelFacts,
    ModuleFacts,
    RebuildableBufferFacts,
    TensorFacts,
    TensorLayout,
    WrapperFacts,
)
from .ranks import RankDifference, RanksFacts
from .sharding import (
    LayoutFacts,
    MeshFacts,
    OwnershipFacts,
    ReductionFacts,
    ShardingFacts,
    UnitFacts,
)
from .snapshot import FACTS_VERSION, BuildFacts, Environment, Facts, Section

__all__ = [
    "EMPTY",
    "FACTS_VERSION",
    "BuildFacts",
    "CheckpointFacts",
    "ClassDeclaration",
    "ContractFacts",
    "ContractProblem",
    "ConversionFacts",
    "DataFacts",
    "DataSemanticsFacts",
    "DataStageFacts",
    "EntryFacts",
    "Environment",
    "Facts",
    "FileFacts",
    "FileProblem",
    "FrozenDict",
    "IndexFacts",
    "InvariantOutcome",
    "LayoutFacts",
    "LoadFacts",
    "MeshFacts",
    "MismatchedKey",
    "ModelCounts",
    "ModelFacts",
    "ModuleFacts",
    "OwnershipFacts",
    "ProbeFacts",
    "RankDifference",
    "RanksFacts",
    "RebuildableBufferFacts",
    "ReductionFacts",
    "ReplacementFacts",
    "Section",
    "ShardingFacts",
    "SharedStateFacts",
    "TensorFacts",
    "TensorLayout",
    "UnitFacts",
    "WrapperFacts",
    "freeze",
    "thaw",
]
