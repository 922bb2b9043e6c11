"""Contracts: where they come from, what becomes of bad ones, and their invariants on a live model."""

import textwrap

import numpy
import pytest
import torch
from attrs import frozen
from torch import nn

import shardlint
from shardlint import FrozenDict, Target
from shardlint.collect import CollectOptions, TargetError, collect
from shardlint.collect.contracts import find_contract, queries
from shardlint.config import ConfigError
from shardlint.contract import (
    Contract,
    DataPipeline,
    DataSemantics,
    DataStage,
    Invariant,
    ParityCase,
    Probe,
    Recipe,
    Replacement,
    SharedState,
    TopologyConstraint,
)

CONFIG = FrozenDict(model_type="acme", architectures=("AcmeForCausalLM", "AcmeModel"))


@frozen(kw_only=True)
class Answer:
    contract: object = None
    error: str = ""
    label: str = "acme (acme-pack 1.0)"


class Registry:
    """Answers like the packs' registry: a list for each key."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []
        self.collectors = ()

    def contracts(self, query):
        self.asked.append((query.key, query.kind))
        return self.answers.get(query.key, ())


def test_the_model_type_is_asked_first_then_each_architecture():
    assert [(item.key, item.kind) for item in queries(CONFIG)] == [
        ("acme", "model_type"),
        ("AcmeForCausalLM", "architecture"),
        ("AcmeModel", "architecture"),
    ]
    assert list(queries(None)) == []


def test_the_first_contract_wins():
    first, second = Contract(name="first"), Contract(name="second")
    registry = Registry(
        AcmeForCausalLM=[Answer(contract=first), Answer(contract=second)], AcmeModel=[Answer(contract=second)]
    )
    found = find_contract(CONFIG, registry=registry)
    assert found.contract is first
    assert found.source == "pack acme (acme-pack 1.0) for AcmeForCausalLM"
    assert registry.asked == [("acme", "model_type"), ("AcmeForCausalLM", "architecture")]


def test_no_contract_says_who_was_asked():
    assert find_contract(CONFIG, registry=Registry()).reason == (
        "no contract was given, and no pack has a contract for acme, AcmeForCausalLM, AcmeModel"
    )
    assert "names no model type" in find_contract(None, registry=Registry()).reason


def test_a_provider_that_fails_is_a_problem_told_once():
    broken = Answer(error="it raised KeyError: 3")
    registry = Registry(acme=[broken], AcmeForCausalLM=[broken], AcmeModel=[Answer(contract=Contract())])
    found = find_contract(CONFIG, registry=registry)
    assert found.contract is not None
    assert [(item.where, item.error) for item in found.problems] == [
        ("pack acme (acme-pack 1.0)", "it raised KeyError: 3")
    ]
    facts = collect(Target(model=with_config()), CollectOptions(packs=Registry(acme=[broken])))
    assert facts.contract.problems[0].error == "it raised KeyError: 3"


def with_config(model=None):
    model = nn.Linear(1, 1) if model is None else model
    model.config = dict(CONFIG)
    return model


DECLARED = {"declared": FrozenDict(probes=({"glob": "declared"},)), "declared_in": "shardlint.yaml"}


def test_what_is_named_wins_over_what_is_given_over_what_is_declared(tmp_path, monkeypatch):
    (tmp_path / "owner_contract.py").write_text(
        "from shardlint.contract import Contract\nnamed = Contract(name='named')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry(acme=[Answer(contract=Contract(name="pack"))])
    target = Target(model=with_config(), contract=Contract(name="given"))
    everything = {"packs": registry, **DECLARED}
    assert collect(target, CollectOptions(contract="owner_contract:named", **everything)).contract.name == "named"
    assert collect(target, CollectOptions(contract=Contract(name="direct"), **everything)).contract.name == "direct"
    assert collect(target, CollectOptions(**everything)).contract.name == "given"
    declared = collect(Target(model=with_config()), CollectOptions(**everything)).contract
    assert (declared.source, declared.probes[0].glob) == ("shardlint.yaml", "declared")
    packs = collect(Target(model=with_config()), CollectOptions(packs=registry)).contract
    assert (packs.name, packs.replaces) == ("pack", "")


@pytest.mark.parametrize("how", ["given", "declared"])
def test_whose_contract_is_replaced_is_written_down(how):
    registry = Registry(AcmeForCausalLM=[Answer(contract=Contract(name="pack"))])
    given = Contract(name="given") if how == "given" else None
    declared = DECLARED if how == "declared" else {}
    target = Target(model=with_config(), contract=given)
    replaced = collect(target, CollectOptions(packs=registry, **declared)).contract
    assert replaced.replaces == "pack acme (acme-pack 1.0) for AcmeForCausalLM"
    alone = collect(target, CollectOptions(packs=Registry(), **declared)).contract
    assert alone.replaces == ""


PROVIDERS = """
    from shardlint.contract import Contract

    def plain():
        return Contract(name="plain")

    def asked(query):
        return Contract(name=f"asked {query.kind} {query.key}")

    def raising(query):
        raise KeyError("no")

    def wrong():
        return {"probes": []}

    number = 3
"""


@pytest.fixture
def providers(tmp_path):
    path = tmp_path / "providers.py"
    path.write_text(textwrap.dedent(PROVIDERS))
    return str(path)


def test_providers_by_name(providers):
    model = with_config()
    assert collect(Target(model=model), CollectOptions(contract=f"{providers}:plain")).contract.name == "plain"
    assert (
        collect(Target(model=model), CollectOptions(contract=f"{providers}:asked")).contract.name
        == "asked model_type acme"
    )
    assert (
        collect(Target(model=nn.Linear(1, 1)), CollectOptions(contract=f"{providers}:asked")).contract.name
        == "asked model_type "
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [("raising", "raised KeyError"), ("wrong", "got dict"), ("number", "got int")],
)
def test_a_provider_that_gives_no_contract_is_a_problem(providers, name, text):
    facts = collect(Target(model=with_config()), CollectOptions(contract=f"{providers}:{name}"))
    (problem,) = facts.contract.problems
    assert problem.where.endswith(f":{name}")
    assert text in problem.error


@pytest.mark.parametrize("text", ["gone_module:x", "gone.py:x", "nonsense"])
def test_a_contract_name_that_does_not_exist_is_the_users_error(text):
    with pytest.raises(TargetError, match="contract"):
        collect(Target(model=nn.Linear(1, 1)), CollectOptions(contract=text))


def test_what_is_no_contract_in_the_target_is_a_problem():
    facts = collect(Target(model=nn.Linear(1, 1), contract={"probes": []}))
    assert "got dict" in facts.contract.problems[0].error


def test_a_malformed_declaration_is_a_problem_for_each_field():
    declared = FrozenDict(probes=({"glob": ""},), unknown=3)
    facts = collect(Target(model=nn.Linear(1, 1)), CollectOptions(declared=declared))
    assert [item.where for item in facts.contract.problems] == [
        "the configuration file: contract.probes[0].glob",
        "the configuration file: contract.unknown",
    ]


def outcome_of(checker, phase="structure", phases=(), model=None):
    contract = Contract(invariants=[Invariant(name="a", checker=checker, phase=phase)])
    facts = collect(
        Target(model=nn.Linear(1, 1) if model is None else model, contract=contract), CollectOptions(phases=phases)
    )
    (found,) = facts.contract.invariants
    return found


def by_keyword(model, *, context):
    return {"said": (context.name, context.phase)}


def with_default(model, tolerance=1e-5):
    return tolerance == 1e-5


class Checker:
    """An object that is called with both."""

    def __call__(self, model, told):
        return {"said": (told.name, told.phase)}


@pytest.mark.parametrize(
    "checker",
    [lambda model, context: {"said": (context.name, context.phase)}, by_keyword, Checker()],
    ids=["position", "keyword", "object"],
)
def test_a_checker_is_called_with_what_it_asks_for(checker):
    found = outcome_of(checker)
    assert found.facts["said"] == (found.name, found.phase)


def test_a_second_argument_with_a_default_is_the_checkers_own():
    assert outcome_of(with_default).status == "passed"


@pytest.mark.parametrize("result", [True, None, numpy.bool_(True), torch.tensor(True)])
def test_true_and_none_pass(result):
    assert outcome_of(lambda model: result).status == "passed"


@pytest.mark.parametrize(
    ("result", "facts"),
    [
        ({"layer": 3, "names": ["a"]}, {"layer": 3, "names": ("a",)}),
        ({}, {}),
        (False, {"result": False}),
        (1, {"result": 1}),
        ("text", {"result": "text"}),
        ([1, 2], {"result": (1, 2)}),
        (torch.tensor(False), {"result": False}),
        (float("nan"), {"result": "nan"}),
    ],
)
def test_a_mapping_becomes_the_facts_and_anything_else_the_result(result, facts):
    found = outcome_of(lambda model: result)
    assert found.status == "failed"
    assert found.facts == facts


def test_an_object_is_shown():
    class Odd:
        def __repr__(self):
            return "Odd!" + "x" * 1000

    shown = outcome_of(lambda model: Odd()).facts["result"]
    assert shown.startswith("Odd!x")
    assert len(shown) == 200


def test_checkers_get_the_model_without_wrappers_and_gradients():
    inner = nn.Linear(1, 1)
    seen = []
    outcome_of(lambda model: seen.append((model is inner, torch.is_grad_enabled())), model=torch.compile(inner))
    assert seen == [(True, False)]


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3), KeyError("x")])
def test_a_checker_that_raises(error):
    def raising(model):
        raise error

    found = outcome_of(raising)
    assert found.status == "raised"
    assert found.error.startswith(f"{type(error).__name__}: ")


def test_phases():
    assert outcome_of(lambda model: True, phase="teardown").status == "unsupported-phase"
    assert outcome_of(lambda model: True, phase="runtime").status == "not-evaluated"
    assert "only when asked for" in outcome_of(lambda model: True, phase="runtime").error
    assert outcome_of(lambda model: False, phase="runtime", phases=("runtime",)).status == "failed"
    assert outcome_of(lambda model: True, phase="checkpoint").status == "passed"


def test_the_phases_of_invariants_can_be_chosen(tmp_path):
    left_out = outcome_of(lambda model: False, phase="checkpoint", phases=("structure", "runtime"))
    assert (left_out.status, left_out.error) == (
        "not-evaluated",
        "invariants of structure, runtime alone were asked for",
    )
    assert outcome_of(lambda model: False, phase="teardown", phases=("structure",)).status == "unsupported-phase"
    file = tmp_path / "shardlint.yaml"
    file.write_text("invariant-phases: [checkpoint]\n")
    phases = ("structure", "checkpoint")
    contract = Contract(invariants=[Invariant(name=phase, phase=phase, checker=lambda model: True) for phase in phases])
    facts = shardlint.snapshot(nn.Linear(1, 1), contract=contract, config=file)
    assert [item.status for item in facts.contract.invariants] == ["not-evaluated", "passed"]
    file.write_text("invariant-phases: [checkpiont]\n")
    with pytest.raises(ConfigError, match="checkpiont"):
        shardlint.snapshot(nn.Linear(1, 1), config=file)


def test_checkers_by_import_path():
    assert outcome_of("torch.nn:Module.parameters").status == "failed"  # a generator is neither True nor None
    contract = Contract(
        invariants=[
            Invariant(name="gone", checker="torch.nn:Modul"),
            Invariant(name="number", checker="math:pi"),
            Invariant(name="bad", checker="teardown_only:x", phase="teardown"),
        ]
    )
    facts = collect(Target(model=nn.Linear(1, 1), contract=contract))
    assert [item.status for item in facts.contract.invariants] == [
        "not-evaluated",
        "not-evaluated",
        "unsupported-phase",
    ]
    gone, number = facts.contract.problems
    assert gone.where == "invariants[0].checker"
    assert "did you mean 'Module'" in gone.error
    assert "expected a callable, got float" in number.error


def test_without_a_model_nothing_is_evaluated():
    contract = Contract(invariants=[Invariant(name="a", checker=lambda model: True)])
    facts = collect(Target(contract=contract))
    assert facts.contract.invariants[0].status == "not-evaluated"


class Slow(nn.Module):
    pass


class Fast(nn.Module):
    pass


class FastChild(Fast):
    pass


@pytest.mark.parametrize(
    ("pattern", "replacement", "matched"),
    [
        ("layers.*", "Fast", ("layers.1", "layers.10")),
        ("layers.*", "Fas?", ("layers.1", "layers.10")),
        ("layers.*", "Slow", ("layers.0",)),
        ("**.1", "*", ("layers.1",)),
        ("*.1", "Fast", ("layers.1",)),
        ("Fast", "*Child", ("layers.10",)),
        ("layers.*", "**.test_contracts.Fast", ("layers.1", "layers.10")),
        ("layers.0", "Fast", ()),
        ("gone.*", "Fast", ()),
    ],
)
def test_replacements_in_the_final_tree(pattern, replacement, matched):
    model = nn.Module()
    model.layers = nn.ModuleDict({"0": Slow(), "1": Fast(), "10": FastChild()})
    contract = Contract(replacements=[Replacement(pattern=pattern, replacement=replacement)])
    (found,) = collect(Target(model=model, contract=contract)).contract.replacements
    assert found.matched == matched


def test_the_whole_contract_is_written_down():
    contract = Contract(
        name="mine",
        probes=[Probe(glob="a", stages=["load"], comparison="numeric", replica_check=True, required=False)],
        training_only_targets=["t.*"],
        inference_only_sources=["i.*"],
        data=DataSemantics(forward_fields=["x"], modality_fields={"image": ["pixels"]}, labels_shifted=True),
        shared_state=[SharedState(name="kv", producers=["p"], consumers=["c"])],
        topology=[TopologyConstraint(name="ep", fields={"axis": "ep", "divides": 8})],
        parity_cases=[ParityCase(name="attention", fields={"module": "a"})],
        placeholders=["*Stub"],
        lazy_buffers=["*.cache"],
        recipes=[Recipe(buffer="*.slopes", recipe="acme.recipes:slopes")],
    )
    facts = collect(Target(model=nn.Linear(1, 1), contract=contract)).contract
    assert (facts.name, facts.source) == ("mine", "Target.contract")
    assert (facts.probes[0].stages, facts.probes[0].required, facts.probes[0].replica_check) == (("load",), False, True)
    assert (facts.training_only_targets, facts.inference_only_sources) == (("t.*",), ("i.*",))
    assert facts.data.modality_fields == {"image": ("pixels",)}
    assert (facts.data.forward_fields, facts.data.labels_shifted) == (("x",), True)
    assert (facts.shared_state[0].producers, facts.shared_state[0].consumers) == (("p",), ("c",))
    assert facts.topology == (FrozenDict(name="ep", axis="ep", divides=8),)
    assert facts.parity_cases == (FrozenDict(name="attention", module="a"),)
    assert (facts.placeholders, facts.lazy_buffers) == (("*Stub",), ("*.cache",))
    assert facts.recipes == ("*.slopes",)


def test_the_contracts_placeholders_reach_the_model():
    facts = collect(Target(model=nn.Sequential(Slow()), contract=Contract(placeholders=["Slow"])))
    assert facts.model.modules[1].placeholder


def test_the_data_pipeline_is_written_down():
    data = DataPipeline(
        stages=[DataStage(name="text", fields=["input_ids"])],
        runtime_fields=["mask"],
        labels_shifted=False,
        processor_revision="abc",
    )
    facts = collect(Target(model=nn.Linear(1, 1), data=data)).data
    assert [(item.name, item.fields) for item in facts.stages] == [("text", ("input_ids",))]
    assert (facts.runtime_fields, facts.labels_shifted, facts.processor_revision) == (("mask",), False, "abc")
