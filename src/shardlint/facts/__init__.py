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
from .snapshot import FACTS_VERSION, BuildFacts, CollectionProblem, Environment, Facts, Section

__all__ = [
    "EMPTY",
    "FACTS_VERSION",
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
    "EntryFacts",
    "Environment",
    "Facts",
    "FileFacts",
    "FileProblem",
    "FrozenDict",
    "IndexFacts",
    "InvariantOutcome",
    "LoadFacts",
    "MismatchedKey",
    "ModelCounts",
    "ModelFacts",
    "ModuleFacts",
    "ProbeFacts",
    "RebuildableBufferFacts",
    "ReplacementFacts",
    "Section",
    "SharedStateFacts",
    "TensorFacts",
    "TensorLayout",
    "WrapperFacts",
    "freeze",
    "thaw",
]
