"""The sections together: what is absent and why, packs' collectors one by one, failures written down."""

import pytest
import torch
from attrs import evolve, frozen
from safetensors.torch import save_file
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM

from shardlint import Section, Target
from shardlint.checkpoint import folder as checkpoint_module
from shardlint.collect import CollectOptions, Collector, TargetError, collect, collect_resolved, resolve
from shardlint.facts import ContractFacts, DataFacts
from shardlint.facts.codec import decode_facts, encode_facts

TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}


def test_every_absent_section_says_why():
    facts = collect(Target(model=nn.Linear(1, 1), name="tiny"))
    present = {Section.MODEL, Section.SHARDING, Section.VALUES}
    assert {section for section in Section if facts.has(section)} == present
    assert set(facts.absent) == {section.value for section in Section} - {section.value for section in present}
    assert facts.absent["checkpoint"] == "no checkpoint was given"
    assert facts.absent["load"] == "no load report was retained"
    assert facts.absent["data"] == "no data pipeline was given"
    assert facts.target == "tiny"
    assert decode_facts(encode_facts(facts)) == facts


def test_everything_at_once(tmp_path):
    config = MixtralConfig(**TINY, num_key_value_heads=2, num_local_experts=2)
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    model, info = MixtralForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    facts = collect(Target(model=model, checkpoint=tmp_path, load_info=info))
    assert not facts.problems
    assert facts.checkpoint.format == "safetensors"
    assert {item.status for item in facts.plan.tensors} == {"loaded"}
    assert facts.load.missing == ()
    assert decode_facts(encode_facts(facts)) == facts


def test_the_environment():
    versions = collect(Target(model=nn.Linear(1, 1))).environment.versions
    assert versions["torch"] == torch.__version__
    assert {"shardlint", "python", "transformers"} <= set(versions)


def test_the_place_in_a_job(one_rank):
    environment = collect(Target(model=nn.Linear(1, 1))).environment
    assert (environment.rank, environment.world_size) == (0, 1)


@pytest.mark.parametrize("model", [3, nn.Linear, "text", [nn.Linear(1, 1)]])
def test_what_is_no_module_is_refused(model):
    with pytest.raises(TargetError, match=r"expected a torch\.nn\.Module"):
        collect(Target(model=model))


def test_what_is_no_load_report_is_refused():
    with pytest.raises(TargetError, match="load_info: expected"):
        collect(Target(model=nn.Linear(1, 1), load_info=[]))


def test_a_checkpoint_that_is_not_there(tmp_path):
    with pytest.raises(TargetError, match="no such file or folder"):
        collect(Target(model=nn.Linear(1, 1), checkpoint=tmp_path / "gone"))


def test_the_checkpoint_option_wins(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_file({name: torch.ones(1)}, tmp_path / name / "model.safetensors")
    (tmp_path / "b.py").write_text(
        "import torch, shardlint\n"
        f"path = {str(tmp_path / 'one')!r}\n"
        "def build():\n    return shardlint.Target(model=torch.nn.Linear(1, 1), checkpoint=path)\n"
    )
    found = resolve(f"{tmp_path}/b.py:build")
    assert collect_resolved(found).checkpoint.entries[0].key == "one"
    assert collect_resolved(found, checkpoint=tmp_path / "two").checkpoint.entries[0].key == "two"


@frozen(kw_only=True)
class Registered:
    """What the registry holds for a pack's collector."""

    name: str
    section: str
    function: object
    collector: object = None
    label: str = "acme (acme-pack 1.0)"
    root: str = ""

    def collect(self, *arguments):
        return self.function(*arguments)


class Registry:
    def __init__(self, *collectors):
        self.collectors = collectors

    def contracts(self, query):
        return ()


def raising(target, walk, facts):
    raise ValueError("broken")


def leaving(target, walk, facts):
    raise SystemExit(0)


def test_packs_collectors_one_by_one():
    def lazily(target, walk, facts):
        assert walk.root is target.model
        assert facts.model is not None
        return evolve(facts.contract or ContractFacts(source="acme"), lazy_buffers=("cache",))

    registry = Registry(
        Registered(name="raising", section="data", function=raising),
        Registered(name="leaving", section="data", function=leaving),
        Registered(name="wrong-type", section="data", function=lambda *_: ContractFacts(source="x")),
        Registered(name="wrong-section", section="dta", function=lambda *_: DataFacts()),
        Registered(name="nothing", section="data", function=lambda *_: None),
        Registered(name="lazy", section="contract", function=lazily),
    )
    facts = collect(Target(model=nn.Linear(1, 1)), CollectOptions(packs=registry))
    assert facts.contract.lazy_buffers == ("cache",)
    assert "contract" not in facts.absent
    assert facts.data is None
    found = [(item.collector, item.section, item.error_type) for item in facts.problems]
    assert found == [
        ("raising", "data", "ValueError"),
        ("leaving", "data", "SystemExit"),
        ("wrong-type", "data", "TypeError"),
        ("wrong-section", "dta", "ValueError"),
    ]
    assert {item.pack for item in facts.problems} == {"acme (acme-pack 1.0)"}
    assert facts.problems[0].frame.endswith(" in raising")
    assert "takes DataFacts, the collector returned ContractFacts" in facts.problems[2].error
    assert "expected one of" in facts.problems[3].error
    assert decode_facts(encode_facts(facts)) == facts


def test_a_failed_collector_does_not_hide_a_section_that_is_there():
    registry = Registry(Registered(name="raising", section="model", function=raising))
    facts = collect(Target(model=nn.Linear(1, 1)), CollectOptions(packs=registry))
    assert facts.model is not None
    assert "model" not in facts.absent
    assert [item.section for item in facts.problems] == ["model"]


def test_a_built_in_collector_that_fails_is_a_problem_too(monkeypatch, tmp_path):
    def broken(path):
        raise RuntimeError("bug")

    monkeypatch.setattr(checkpoint_module, "collect_checkpoint", broken)
    facts = collect(Target(model=nn.Linear(1, 1), checkpoint=tmp_path))
    assert facts.checkpoint is None
    assert [(item.collector, item.pack, item.error) for item in facts.problems] == [("checkpoint", "", "bug")]
    assert facts.absent["checkpoint"] == "its collector checkpoint failed: RuntimeError: bug"
    assert facts.absent["plan"] == facts.absent["checkpoint"]


def test_the_protocol_of_collectors():
    assert isinstance(Registered(name="a", section="data", function=raising), Collector)
    assert not isinstance(object(), Collector)
