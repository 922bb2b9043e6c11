"""The D2 rules on live models."""

import traceback

import pytest
import torch

import shardlint
from shardlint.contract import Contract, DataPipeline, DataSemantics, DataStage, Invariant
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.facts import (
    BuildFacts,
    Facts,
)
from shardlint.testing import assert_findings, assert_rule_clean, run_rule
from shardlint_rules.d2_structure.data_contract_mismatch import DataContractMismatch
from shardlint_rules.d2_structure.forward_field_collision import ForwardFieldCollision
from shardlint_rules.d2_structure.model_build_failed import ModelBuildFailed
from shardlint_rules.d2_structure.placeholder_left import PlaceholderLeft
from shardlint_rules.d2_structure.structure_invariant_failed import StructureInvariantFailed
from shardlint_rules.pack import shardlint_rules
from support.models import llama

from ..live import facts_of


@pytest.mark.live("D201", collects=False)
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


@pytest.mark.live("D202")
def test_d202_a_checker_that_asks_the_live_model():
    def checker(model):
        return {"layers": len(model.model.layers)} if len(model.model.layers) != 2 else None

    declared = Contract(invariants=(Invariant(name="layers", checker=checker, phase="structure"),))
    assert_rule_clean(run_rule(StructureInvariantFailed, facts_of(llama(), declared=declared)))
    found = run_rule(StructureInvariantFailed, facts_of(llama(num_hidden_layers=3), declared=declared))
    assert_findings(found, "layers")
    assert found.findings[0].evidence == {"layers": 3}


@pytest.mark.live("D203")
def test_d203_a_lazy_module_and_a_marked_one():
    class FusedPlaceholder(torch.nn.Module):
        def forward(self, hidden):
            raise NotImplementedError

    model = llama()
    model.model.layers[1].mlp = FusedPlaceholder()
    assert_findings(run_rule(PlaceholderLeft, facts_of(model)), "model.layers.1.mlp")


@pytest.mark.live("D204")
def test_d204_two_stages_of_a_pipeline_claim_one_field():
    def pipeline(*fields):
        stages = (DataStage(name="tokenize", fields=("labels",)), DataStage(name="pack", fields=fields))
        return facts_of(llama(), data=DataPipeline(stages=stages))

    assert_findings(run_rule(ForwardFieldCollision, pipeline("labels", "position_ids")), "labels")
    assert_rule_clean(run_rule(ForwardFieldCollision, pipeline("position_ids")))


@pytest.mark.live("D205")
def test_d205_a_pipeline_that_does_not_keep_the_contract():
    declared = Contract(data=DataSemantics(labels_shifted=False, runtime_fields=("cu_seqlens",)))
    facts = facts_of(llama(), declared=declared, data=DataPipeline(labels_shifted=True))
    assert_findings(run_rule(DataContractMismatch, facts), "cu_seqlens", "labels")
    kept = DataPipeline(labels_shifted=False, runtime_fields=("cu_seqlens",))
    assert_rule_clean(run_rule(DataContractMismatch, facts_of(llama(), declared=declared, data=kept)))


class Blocks(torch.nn.Module):
    """Keeps its blocks as `keep` says, and runs them."""

    def __init__(self, keep):
        super().__init__()
        self.stem = torch.nn.Linear(4, 4)
        self.kept = keep([torch.nn.Linear(4, 4) for _ in range(2)])

    def forward(self, x):
        blocks = self.kept() if callable(self.kept) and not isinstance(self.kept, torch.nn.Module) else self.kept
        blocks = blocks.values() if isinstance(blocks, dict) else blocks
        x = self.stem(x)
        for block in blocks:
            x = (block[0] if isinstance(block, list) else block)(x)
        return x


HIDING = {
    "list": lambda blocks: blocks,
    "tuple": tuple,
    "dict": lambda blocks: {"first": blocks[0], "second": blocks[1]},
    "list of lists": lambda blocks: [[block] for block in blocks],
}


def traced_blocks(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shardlint.trace(model, optimizer) as trace:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return shardlint.lint(model, optimizer=optimizer, trace=trace, config=False, select=["D212"])


@pytest.mark.live("D212")
@pytest.mark.parametrize("how", HIDING)
def test_d212_blocks_in_a_plain_container(how):
    model = Blocks(HIDING[how])
    (before,) = shardlint.lint(model, config=False, select=["D212"]).findings
    assert (before.subject, before.severity.value) == ("kept", "warning")
    (traced,) = traced_blocks(Blocks(HIDING[how])).findings
    assert (traced.subject, traced.severity.value, len(traced.evidence["with_gradient"])) == ("kept", "error", 4)


@pytest.mark.live("D212")
def test_d212_blocks_in_a_closure():
    def keep(blocks):
        return lambda: blocks

    assert not shardlint.lint(Blocks(keep), config=False, select=["D212"]).findings
    (found,) = traced_blocks(Blocks(keep)).findings
    assert (found.subject, found.severity.value) == ("torch.nn.modules.linear.Linear", "error")


def registered_twice(model):
    model.shortcuts = [model.stem, *model.kept]


def frozen_teacher(model):
    model.teacher = [torch.nn.Linear(4, 4).requires_grad_(False)]


def recurrent(model):
    model.kept.append(torch.nn.Linear(4, 4))
    model.lstm = torch.nn.LSTM(4, 4)


def wrapper_of_a_registered_one(model):
    model.wrapped = [torch.nn.Sequential(model.stem)]


@pytest.mark.parametrize("change", [registered_twice, frozen_teacher, recurrent, wrapper_of_a_registered_one])
def test_d212_is_silent_about_what_is_registered_or_frozen(change):
    model = Blocks(torch.nn.ModuleList)
    change(model)
    report = traced_blocks(model)
    assert not report.findings
    assert report.outcomes[0].status.value == "clean"


@pytest.fixture
def alone(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP is switching")
@pytest.mark.parametrize("originals", [False, True])
def test_d212_what_fsdp1_keeps_stands_for_parameters_of_the_tree(alone, originals):
    from torch.distributed.fsdp import FullyShardedDataParallel

    kept = Blocks(lambda blocks: blocks)
    for module, subjects in ((torch.nn.Linear(4, 4), []), (kept, ["kept"])):
        wrapped = FullyShardedDataParallel(module, use_orig_params=originals, device_id=torch.device("cpu"))
        found = shardlint.lint(wrapped, config=False, select=["D212"]).findings
        assert [finding.subject for finding in found if finding.code == "D212"] == subjects
