"""Load reports in all their forms, and conversions that can or cannot be reversed."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from shardlint.facts import MismatchedKey
from shardlint.loading.load_report import load_facts

TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}


@pytest.mark.parametrize("kind", [set, list, tuple, frozenset])
def test_keys_of_any_collection_in_natural_order(kind):
    facts = load_facts({"missing_keys": kind(["b.10", "b.9"]), "unexpected_keys": kind(), "loaded_keys": kind(["a"])})
    assert facts.missing == ("b.9", "b.10")
    assert facts.unexpected == ()
    assert facts.loaded == ("a",)
    assert facts.reported


def test_mismatched_keys_and_messages():
    report = {
        "missing_keys": None,
        "mismatched_keys": {("w", torch.Size([2, 3]), torch.Size([3, 2])), "bare"},
        "error_msgs": ["size mismatch"],
    }
    facts = load_facts(report)
    assert facts.mismatched == (
        MismatchedKey(key="bare", stored_shape=(), live_shape=()),
        MismatchedKey(key="w", stored_shape=(2, 3), live_shape=(3, 2)),
    )
    assert facts.errors == ("size mismatch",)
    assert facts.loaded is None


def test_what_load_state_dict_returns():
    model = nn.Linear(2, 2)
    facts = load_facts(model.load_state_dict({"weight": torch.ones(2, 2), "extra": torch.ones(1)}, strict=False), model)
    assert (facts.loader, facts.missing, facts.unexpected) == ("load_state_dict", ("bias",), ("extra",))


def test_what_from_pretrained_reports(tmp_path):
    LlamaForCausalLM(LlamaConfig(**TINY)).save_pretrained(tmp_path)
    from safetensors.torch import load_file, save_file

    stored = load_file(tmp_path / "model.safetensors")
    stored["model.extra"] = stored.pop("model.norm.weight")
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model, info = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    facts = load_facts(info, model)
    assert facts.loader == "transformers"
    assert (facts.missing, facts.unexpected) == (("model.norm.weight",), ("model.extra",))


@pytest.mark.parametrize("report", [3, {}, {"keys": []}, ["missing_keys"]])
def test_what_is_no_report_is_refused(report):
    with pytest.raises(TypeError, match="load_info: expected"):
        load_facts(report)


def test_no_report_and_no_conversions_is_nothing():
    assert load_facts(None) is None
    assert load_facts(None, nn.Linear(1, 1)) is None


def test_recorded_conversions_of_a_real_load(tmp_path):
    config = MixtralConfig(**TINY, num_key_value_heads=2, num_local_experts=2)
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    model = MixtralForCausalLM.from_pretrained(tmp_path)
    facts = load_facts(None, model)
    assert not facts.reported
    merging = [item for item in facts.conversions if item.operations]
    assert [item.operations for item in merging] == [("MergeModulelist", "Concatenate"), ("MergeModulelist",)]
    assert all(item.reverse_error is None for item in facts.conversions)
    assert "w1" in merging[0].sources[0]


class Base:
    def __init__(self):
        self.source_patterns = ["a"]
        self.target_patterns = "b"
        self.operations = [self]


class NoReverse(Base):
    pass


class NotCallable(Base):
    reverse_transform = 3


class Works(Base):
    def reverse_transform(self):
        self.source_patterns.append("mutated")


class Uncopyable(Base):
    def __deepcopy__(self, memo):
        raise RuntimeError("no")

    def reverse_transform(self):
        return None


def raising(error):
    class Raises(Base):
        def reverse_transform(self):
            raise error

    return Raises()


def conversions_of(*transforms):
    model = nn.Linear(1, 1)
    model._weight_conversions = list(transforms)
    return load_facts(None, model).conversions


def test_conversions_without_a_working_reverse():
    errors = [AttributeError("a"), NotImplementedError("n"), TypeError("t"), ValueError("v")]
    found = conversions_of(NoReverse(), NotCallable(), *map(raising, errors))
    assert [item.reverse_error for item in found] == [
        "it has no callable reverse_transform",
        "it has no callable reverse_transform",
        "AttributeError: a",
        "NotImplementedError: n",
        "TypeError: t",
        "ValueError: v",
    ]
    assert found[0].qualified_type.endswith("test_load_report.NoReverse")


def test_trying_the_reverse_does_not_touch_the_recorded_transform():
    transform = Works()
    before = copy.copy(transform.source_patterns)
    (found,) = conversions_of(transform)
    assert found.reverse_error is None
    assert transform.source_patterns == before
    assert (found.sources, found.targets, found.operations) == (("a",), ("b",), ("Works",))


def test_a_transform_that_cannot_be_copied_is_tried_all_the_same():
    assert conversions_of(Uncopyable())[0].reverse_error is None


class Report:
    """A trainer's own report, with the parts by their short names."""

    def __init__(self, loaded, missing, unexpected):
        self.loaded, self.missing, self.unexpected = loaded, missing, unexpected


@pytest.mark.parametrize(
    "report",
    [
        Report({"weight"}, ["bias"], ("old",)),
        {"loaded": ["weight"], "missing": ["bias"], "unexpected": ["old"]},
        {"loaded_keys": ["weight"], "missing_keys": ["bias"], "unexpected_keys": ["old"]},
    ],
)
def test_the_report_that_a_trainer_left_on_the_model_is_read(report):
    model = nn.Linear(1, 1)
    model._hp_checkpoint_load_report = report
    facts = load_facts(None, model)
    assert facts.reported
    assert (facts.loaded, facts.missing, facts.unexpected) == (("weight",), ("bias",), ("old",))
    assert load_facts(None, torch.compile(model)).missing == ("bias",)
    assert load_facts({"missing_keys": [], "unexpected_keys": []}, model).missing == (), "what is handed over wins"


def test_what_was_left_on_the_model_and_is_no_report_is_named():
    model = nn.Linear(1, 1)
    model._hp_checkpoint_load_report = 3
    with pytest.raises(TypeError, match="the _hp_checkpoint_load_report of the model: expected"):
        load_facts(None, model)
