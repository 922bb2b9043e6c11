"""Contracts are refused where they are built, and read from plain data with every problem named."""

import subprocess
import sys

import pytest

from shardlint.contract import (
    Contract,
    ContractError,
    DataPipeline,
    DataSemantics,
    DataStage,
    Invariant,
    ParityCase,
    Probe,
    Replacement,
    SharedState,
    TopologyConstraint,
    contract_from_mapping,
)


def check(model):
    return True


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Probe(glob=""), "Probe.glob"),
        (lambda: Probe(glob="  "), "Probe.glob"),
        (lambda: Probe(glob=3), "Probe.glob"),
        (lambda: Probe(glob="a", required="yes"), "Probe.required"),
        (lambda: Probe(glob="a", stages=["sometime"]), "Probe.stages"),
        (lambda: Probe(glob="a", stages=3), "Probe.stages"),
        (lambda: Probe(glob="a", comparison="fuzzy"), "Probe.comparison"),
        (lambda: Probe(glob="a", replica_check=1), "Probe.replica_check"),
        (lambda: Invariant(name="", checker=check), "Invariant.name"),
        (lambda: Invariant(name="a", checker=3), "Invariant.checker"),
        (lambda: Invariant(name="a", checker="no colon"), "Invariant.checker"),
        (lambda: Invariant(name="a", checker="a:b c"), "Invariant.checker"),
        (lambda: Invariant(name="a", checker=check, phase=""), "Invariant.phase"),
        (lambda: Invariant(name="a", checker=check, phase=None), "Invariant.phase"),
        (lambda: DataSemantics(forward_fields=["a", ""]), "DataSemantics.forward_fields"),
        (lambda: DataSemantics(runtime_fields=None), "DataSemantics.runtime_fields"),
        (lambda: DataSemantics(modality_fields=["a"]), "DataSemantics.modality_fields"),
        (lambda: DataSemantics(modality_fields={"": ["a"]}), "DataSemantics.modality_fields"),
        (lambda: DataSemantics(modality_fields={3: ["a"]}), "DataSemantics.modality_fields"),
        (lambda: DataSemantics(modality_fields={"image": []}), "DataSemantics.modality_fields"),
        (lambda: DataSemantics(modality_parameters={"image": [""]}), "DataSemantics.modality_parameters"),
        (lambda: DataSemantics(modality_parameters={"image": [object()]}), "DataSemantics.modality_parameters"),
        (lambda: DataSemantics(labels_shifted="no"), "DataSemantics.labels_shifted"),
        (lambda: DataSemantics(deterministic_replay=None), "DataSemantics.deterministic_replay"),
        (lambda: SharedState(name="", producers=["a"], consumers=["b"]), "SharedState.name"),
        (lambda: SharedState(name="a", producers=[], consumers=["b"]), "SharedState.producers"),
        (lambda: SharedState(name="a", producers=["a"]), "SharedState.consumers"),
        (lambda: Replacement(pattern="", replacement="b"), "Replacement.pattern"),
        (lambda: Replacement(pattern="a", replacement=""), "Replacement.replacement"),
        (lambda: TopologyConstraint(name=""), "TopologyConstraint.name"),
        (lambda: TopologyConstraint(name="a", fields={"x": object()}), "TopologyConstraint.fields"),
        (lambda: ParityCase(name=" "), "ParityCase.name"),
        (lambda: Contract(probes=["a"]), "Contract.probes[0]"),
        (lambda: Contract(probes=Probe(glob="a")), "Contract.probes"),
        (lambda: Contract(invariants=[Probe(glob="a")]), "Contract.invariants[0]"),
        (lambda: Contract(training_only_targets=[""]), "Contract.training_only_targets"),
        (lambda: Contract(inference_only_sources=[None]), "Contract.inference_only_sources"),
        (lambda: Contract(placeholders=[""]), "Contract.placeholders"),
        (lambda: Contract(data={}), "Contract.data"),
        (lambda: Contract(name=None), "Contract.name"),
        (lambda: Contract(invariants=[Invariant(name="a", checker=check)] * 2), "Contract.invariants"),
        (lambda: DataStage(name="a", fields=[""]), "DataStage.fields"),
        (lambda: DataPipeline(stages=["a"]), "DataPipeline.stages[0]"),
    ],
)
def test_what_cannot_be_used_is_refused_naming_the_field(build, field):
    with pytest.raises(ContractError, match="expected") as caught:
        build()
    assert isinstance(caught.value, ValueError)
    assert caught.value.where == field
    assert str(caught.value).startswith(f"{field}: ")


def test_an_unknown_phase_is_carried():
    assert Invariant(name="a", checker=check, phase="teardown").phase == "teardown"


def test_sequences_become_tuples_and_one_string_is_one_name():
    contract = Contract(training_only_targets="a.*", placeholders={"b", "a"}, probes=[Probe(glob="x", stages="load")])
    assert contract.training_only_targets == ("a.*",)
    assert contract.placeholders == ("a", "b")
    assert contract.probes[0].stages == ("load",)
    assert DataSemantics(modality_fields={"image": "pixels"}).modality_fields == {"image": ("pixels",)}


def test_contracts_cannot_be_changed():
    with pytest.raises(AttributeError):
        Contract().name = "x"


def test_a_whole_contract_from_plain_data():
    contract = contract_from_mapping(
        {
            "name": "mine",
            "probes": [
                "embed.*",
                {"glob": "head.*", "required": False, "comparison": "numeric", "replica-check": True},
            ],
            "invariants": [{"name": "a", "checker": "package.module:check", "phase": "runtime"}],
            "training-only-targets": ["value_head.*"],
            "inference_only_sources": "*.scale",
            "data": {
                "forward-fields": ["input_ids"],
                "modality-fields": {"image": ["pixels"]},
                "labels-shifted": False,
            },
            "shared-state": [{"name": "kv", "producers": ["a"], "consumers": ["b"]}],
            "topology": [{"name": "ep", "axis": "ep", "divides": 64}],
            "parity-cases": [{"name": "attention", "module": "layers.0.attn"}],
            "replacements": [{"pattern": "*.mlp", "replacement": "FastMLP"}],
            "placeholders": ["*Stub"],
            "lazy-buffers": ["*.cache"],
        }
    )
    assert contract.probes[0] == Probe(glob="embed.*")
    assert contract.probes[1] == Probe(glob="head.*", required=False, comparison="numeric", replica_check=True)
    assert contract.invariants[0].checker == "package.module:check"
    assert contract.inference_only_sources == ("*.scale",)
    assert contract.data.labels_shifted is False
    assert contract.shared_state[0].consumers == ("b",)
    assert contract.topology[0].fields == {"axis": "ep", "divides": 64}
    assert contract.parity_cases[0].name == "attention"
    assert contract.replacements == (Replacement(pattern="*.mlp", replacement="FastMLP"),)


def test_every_problem_of_plain_data_is_told_at_once():
    data = {
        "probes": [{"glob": ""}, {"requird": True}, 3],
        "invariants": {"name": "a"},
        "training-only-target": ["x"],
        "data": {"labels-shifted": "yes"},
        "shared-state": [{"name": "a", "producers": ["x"]}],
        "topology": [{"axis": "ep"}],
    }
    with pytest.raises(ContractError) as caught:
        contract_from_mapping(data, "shardlint.yaml: contract")
    where = [place.removeprefix("shardlint.yaml: contract.") for place, _ in caught.value.problems]
    assert where == [
        "probes[0].glob",
        "probes[1].requird",
        "probes[1]",
        "probes[2]",
        "invariants",
        "training-only-target",
        "data.labels-shifted",
        "shared-state[0].consumers",
        "topology[0]",
    ]
    assert "did you mean 'training-only-targets'?" in str(caught.value)


@pytest.mark.parametrize("data", [3, [], None, "text"])
def test_what_is_no_mapping(data):
    with pytest.raises(ContractError, match="expected a mapping"):
        contract_from_mapping(data)


def test_contracts_need_no_torch():
    code = "import sys, shardlint.contract, shardlint.collect; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
