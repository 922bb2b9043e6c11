"""The D2 rules on live models."""

import traceback

import torch

from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.facts import (
    BuildFacts,
    ContractFacts,
    DataFacts,
    DataSemanticsFacts,
    DataStageFacts,
    Facts,
    InvariantOutcome,
)
from shardlint.testing import assert_findings, run_rule
from shardlint_rules.d2_structure.data_contract_mismatch import DataContractMismatch
from shardlint_rules.d2_structure.forward_field_collision import ForwardFieldCollision
from shardlint_rules.d2_structure.model_build_failed import ModelBuildFailed
from shardlint_rules.d2_structure.placeholder_left import PlaceholderLeft
from shardlint_rules.d2_structure.structure_invariant_failed import StructureInvariantFailed
from shardlint_rules.pack import shardlint_rules
from support.models import llama

from ..live import facts_of


def test_d201_blocks_every_other_rule():
    try:
        llama(num_attention_heads=3, hidden_act="no such activation")
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[0]
        text = f"{frame.filename}:{frame.lineno}"
        build = BuildFacts(builder="tests:llama", failed=True, error_type=type(error).__name__, error="", frame=text)
    evaluation = evaluate(Facts(build=build), [SelectedRule(rule=rule()) for rule in shardlint_rules()])
    assert [finding.code for finding in evaluation.findings] == ["D201"]
    later = [item for item in evaluation.outcomes if item.phase.value > "D1" and item.code != "D201"]
    assert {item.status for item in later} <= {Status.BLOCKED, Status.LEFT_OUT}
    assert_findings(run_rule(ModelBuildFailed, Facts(build=build)), "tests:llama")


def test_d202_beside_a_live_model():
    outcome = InvariantOutcome(name="layers", phase="structure", status="failed")
    facts = facts_of(llama(), contract=ContractFacts(source="acme", invariants=(outcome,)))
    assert_findings(run_rule(StructureInvariantFailed, facts), "layers")


def test_d203_a_lazy_module_and_a_marked_one():
    class FusedPlaceholder(torch.nn.Module):
        def forward(self, hidden):
            raise NotImplementedError

    model = llama()
    model.model.layers[1].mlp = FusedPlaceholder()
    assert_findings(run_rule(PlaceholderLeft, facts_of(model)), "model.layers.1.mlp")


def test_d204_beside_a_live_model():
    stages = (DataStageFacts(name="tokenize", fields=("labels",)), DataStageFacts(name="pack", fields=("labels",)))
    assert_findings(run_rule(ForwardFieldCollision, facts_of(llama(), data=DataFacts(stages=stages))), "labels")


def test_d205_beside_a_live_model():
    contract = ContractFacts(
        source="acme", data=DataSemanticsFacts(labels_shifted=False, runtime_fields=("cu_seqlens",))
    )
    facts = facts_of(llama(), contract=contract, data=DataFacts(labels_shifted=True))
    assert_findings(run_rule(DataContractMismatch, facts), "cu_seqlens", "labels")
