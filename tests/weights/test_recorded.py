"""Conversions that a load recorded: stages, a key_mapping, and base-model prefixes as loading resolves them."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from shardlint import Facts, LiveTarget
from shardlint.checkpoint.folder import collect_checkpoint
from shardlint.collect.model import model_facts
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.introspect.walk import walk
from shardlint.loading.load_report import load_facts
from shardlint.loading.plan import collect_plan
from shardlint.loading.recorded_conversions import pristine, signature
from shardlint.testing import run_rule
from shardlint.weights import (
    ExportUnknownError,
    RowKind,
    RowStatus,
    WeightsVerdict,
    check_export,
    faults,
    record_conversions,
    verify,
)
from shardlint.weights.compare.bits import bits_of
from shardlint_rules.d5_checkpoint.conversion_ambiguous import ConversionAmbiguous
from shardlint_rules.v0_validation.weights_differ import WeightsDiffer
from support.loaded_models import loaded, mixtral_config, saved
from support.shrink import quiet
from weights.test_export import llama, loaded_llama, rewritten  # noqa: F401 - a fixture


def base_stage():
    """Experts of the checkpoint into the stacked tensors of the base model, as Mixtral's own mapping does."""
    from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, WeightRenaming

    return [
        WeightRenaming(".block_sparse_moe.", ".mlp."),
        WeightConverter(
            ["mlp.experts.*.w1.weight", "mlp.experts.*.w3.weight"],
            "mlp.experts.gate_up_proj",
            [MergeModulelist(dim=0), Concatenate(dim=1)],
        ),
        WeightConverter("mlp.experts.*.w2.weight", "mlp.experts.down_proj", [MergeModulelist(dim=0)]),
    ]


def replacement_stage():
    """The base model's stacked tensors into those of a module that holds them transposed, gate and up apart."""
    from transformers.core_model_loading import Chunk, Transpose, WeightConverter

    return [
        WeightConverter("mlp.experts.gate_up_proj", ["mlp.experts.gate", "mlp.experts.up"], [Chunk(dim=1)]),
        WeightConverter("mlp.experts.down_proj", "mlp.experts.down_t", [Transpose(1, 2)]),
    ]


class Replaced(nn.Module):
    """What stands in the place of Mixtral's experts."""

    def __init__(self, experts) -> None:
        super().__init__()
        gate, up = experts.gate_up_proj.detach().chunk(2, dim=1)
        self.gate, self.up = nn.Parameter(gate.clone()), nn.Parameter(up.clone())
        self.down_t = nn.Parameter(experts.down_proj.detach().transpose(1, 2).contiguous())


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    from transformers import MixtralForCausalLM

    return saved(tmp_path_factory.mktemp("mixtral"), mixtral_config(intermediate_size=24), MixtralForCausalLM)


@pytest.fixture
def replaced(mixtral):
    from transformers import MixtralForCausalLM

    model = loaded(mixtral, MixtralForCausalLM)
    for layer in model.model.layers:
        layer.mlp.experts = Replaced(layer.mlp.experts)
    return model


def plan_of(model, folder, **more):
    return collect_plan(collect_checkpoint(folder), model=model, model_facts=model_facts(walk(model)), **more)


def test_both_stages_are_run_in_order(replaced, mixtral):
    assert (
        verify(replaced, mixtral).verdict is WeightsVerdict.FAIL
    )  # the model type's mapping knows nothing of the second
    record_conversions(replaced, base=base_stage(), replacement=replacement_stage())
    result = verify(replaced, mixtral)
    assert result.verdict is WeightsVerdict.PASS, list(result.worst())
    assert check_export(replaced, mixtral) == ()
    plan = plan_of(replaced, mixtral)
    gate = plan.tensor_by_name()["model.layers.0.mlp.experts.gate"]
    assert gate.operations == ("MergeModulelist", "Concatenate", "Chunk")
    assert len(gate.sources) == 8
    assert all(tensor.status == "loaded" for tensor in plan.tensors)
    assert (plan.leftovers, plan.remarks) == ((), ())
    facts = load_facts(None, replaced)
    assert facts is not None
    assert [item.operations for item in facts.conversions] == [
        (),
        ("MergeModulelist", "Concatenate"),
        ("MergeModulelist",),
        ("Chunk",),
        ("Transpose",),
    ]
    assert verify(replaced, mixtral).verdict is WeightsVerdict.PASS  # nothing was used up


def leave_as_hyperparallel(model, base, replacement):
    """What that loader leaves: the used conversions of each stage, and both in a row where Transformers has its own."""
    model._hp_used_base_weight_conversions, model._hp_used_replacement_weight_conversions = base, replacement
    model._weight_conversions = [*base, *replacement]


def test_the_stages_that_hyperparallel_records_are_run(replaced, mixtral):
    leave_as_hyperparallel(replaced, base_stage(), replacement_stage())
    assert verify(replaced, mixtral).verdict is WeightsVerdict.PASS
    assert all(tensor.status == "loaded" for tensor in plan_of(replaced, mixtral).tensors)
    assert len(load_facts(None, replaced).conversions) == 5, "each once, although the list has them again"
    bits_of(replaced.model.layers[1].mlp.experts.down_t)[2, 5, 7] ^= 1
    (fault,) = faults(verify(replaced, mixtral))
    assert fault.evidence["first_live"] == "model.layers.1.mlp.experts.down_t[2, 5, 7]"


def test_one_used_stage_without_the_other_leaves_the_list(mixtral):
    from transformers import MixtralForCausalLM

    model = loaded(mixtral, MixtralForCausalLM)
    model._hp_used_replacement_weight_conversions = None
    model._hp_used_base_weight_conversions = []
    assert verify(model, mixtral).verdict is WeightsVerdict.PASS


def test_a_bit_behind_two_stages_is_found_at_its_stored_place(replaced, mixtral):
    record_conversions(replaced, base=base_stage(), replacement=replacement_stage())
    bits_of(replaced.model.layers[1].mlp.experts.down_t)[2, 5, 7] ^= 1
    (fault,) = faults(verify(replaced, mixtral))
    assert fault.evidence["first_live"] == "model.layers.1.mlp.experts.down_t[2, 5, 7]"
    assert fault.evidence["first_checkpoint"] == "model.layers.1.block_sparse_moe.experts.2.w2.weight[7, 5]"
    assert fault.evidence["load_dtype_mismatches"] == 1


def test_stages_in_the_wrong_order_do_not_pass(replaced, mixtral):
    record_conversions(replaced, base=replacement_stage(), replacement=base_stage())
    assert verify(replaced, mixtral).verdict is not WeightsVerdict.PASS


def test_half_a_record_is_no_record(replaced, mixtral):
    replaced._weight_conversion_stages = {"replacement": replacement_stage()}
    result = verify(replaced, mixtral)
    assert result.verdict is WeightsVerdict.INCOMPLETE
    assert "no list of conversions for the stage base" in result.incomplete
    with pytest.raises(ExportUnknownError, match="record both"):
        check_export(replaced, mixtral)
    with pytest.raises(TypeError, match="rename_source_key"):
        record_conversions(replaced, base=["model."], replacement=[])


def test_renames_beside_stages_have_no_order(replaced, mixtral):
    record_conversions(replaced, base=base_stage(), replacement=replacement_stage())
    result = verify(replaced, mixtral, renames=(("a", "b"),))
    assert result.verdict is WeightsVerdict.INCOMPLETE
    assert "checkpoint.renames is declared too" in result.incomplete


def test_two_keys_for_one_name_between_the_stages(replaced, mixtral):
    from transformers.core_model_loading import WeightRenaming

    record_conversions(replaced, base=[WeightRenaming("^model.norm.weight", "lm_head.weight")], replacement=[])
    result = verify(replaced, mixtral)
    assert "ambiguous: " in result.incomplete
    assert "are both for" in result.incomplete


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.half_a, self.half_b = nn.Parameter(torch.empty(2, 3)), nn.Parameter(torch.empty(2, 3))


@pytest.mark.parametrize("attribute", ["list", "stages"])
def test_a_model_of_no_library_is_followed_by_its_record(attribute, tmp_path):
    from transformers.core_model_loading import Chunk, Transpose, WeightConverter

    values = torch.randn(3, 4)
    save_file({"whole": values}, tmp_path / "model.safetensors")
    model = Plain()
    with torch.no_grad():
        for target, part in zip((model.half_a, model.half_b), values.T.chunk(2), strict=True):
            target.copy_(part)
    if attribute == "list":
        model._weight_conversions = [WeightConverter("whole", ["half_a", "half_b"], [Transpose(0, 1), Chunk(dim=0)])]
    else:
        turn = WeightConverter("whole", "turned", [Transpose(0, 1)])
        cut = WeightConverter("turned", ["half_a", "half_b"], [Chunk(dim=0)])
        record_conversions(model, base=[turn], replacement=[cut])
    assert verify(model, tmp_path).verdict is WeightsVerdict.PASS
    assert check_export(model, tmp_path) == ()


MAPPING = {r"^backbone\.": "model."}


def renamed(tensors):
    return {key.replace("model.", "backbone."): value for key, value in tensors.items()}


def test_a_recorded_key_mapping_is_used(llama, tmp_path):  # noqa: F811
    folder = rewritten(llama, tmp_path, renamed)
    model = loaded_llama(folder, key_mapping=MAPPING)
    assert verify(model, folder).verdict is WeightsVerdict.PASS
    assert verify(model, folder, renames=tuple(MAPPING.items())).verdict is WeightsVerdict.PASS
    assert verify(model, llama).verdict is WeightsVerdict.PASS  # a record does not hide the names of the model type
    assert check_export(model, folder) == ()
    with quiet():
        model.save_pretrained(tmp_path / "again")
    assert verify(model, folder).verdict is WeightsVerdict.PASS  # saving rewrites the recorded patterns in place


def test_an_unrecorded_key_mapping_asks_for_its_declaration(llama, tmp_path):  # noqa: F811
    folder = rewritten(llama, tmp_path, renamed)
    model = loaded_llama(folder, key_mapping=MAPPING)
    del model._weight_conversions
    rule = SelectedRule(rule=WeightsDiffer(), explicit=True)
    found = evaluate(Facts(), [rule], live=LiveTarget(model=model, checkpoint=folder))
    assert found.outcomes[0].status is Status.FOUND
    holes = [item for item in found.findings if item.key == "uncompared"]
    assert all("declare it as checkpoint.renames" in item.message and "key_mapping" in item.message for item in holes)
    assert verify(model, folder, renames=tuple(MAPPING.items())).verdict is WeightsVerdict.PASS


def test_a_load_of_an_adapter_is_no_record_of_the_base(llama):  # noqa: F811
    from transformers.core_model_loading import WeightRenaming

    model = loaded_llama(llama)
    model._weight_conversions = [WeightRenaming("q_proj", "k_proj")]
    assert verify(model, llama).verdict is WeightsVerdict.FAIL
    model.peft_config = {}
    assert verify(model, llama).verdict is WeightsVerdict.PASS


def heads(folder):
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

    config = LlamaConfig.from_pretrained(folder)
    return config, LlamaForCausalLM, LlamaModel


def test_prefixes_are_resolved_as_loading_does(llama, tmp_path):  # noqa: F811
    config, head, base = heads(llama)
    headless = saved(tmp_path / "base", config, base)
    unread, uncompared = (
        (RowKind.CHECKPOINT, "a head that the live class does not have"),
        (RowKind.LIVE, "a head that the checkpoint's class does not have: nothing stored gives it"),
    )
    for folder, kind, excused in ((llama, base, unread), (headless, head, uncompared)):
        model = loaded(folder, kind)
        result = verify(model, folder)
        assert (result.verdict, faults(result)) == (WeightsVerdict.PASS, ())
        left_out = [row for row in result.rows if row.status is RowStatus.EXCLUDED]
        assert [(row.name, row.kind, row.reason) for row in left_out] == [("lm_head.weight", *excused)]
        wrong = next(iter(model.parameters()))
        bits_of(wrong)[3, 1] ^= 1
        name = next(name for name, value in model.named_parameters() if value is wrong)
        row = next(row for row in verify(model, folder).of_kind(RowKind.LIVE) if row.name == name)
        assert row.first is not None
        assert row.first.live_index == row.first.checkpoint_index == (3, 1)


def test_a_checkpoint_with_and_without_the_prefix_is_ambiguous(llama, tmp_path):  # noqa: F811
    _, head, base = heads(llama)

    def both(tensors):
        return {
            **tensors,
            **{key.removeprefix("model."): value + 1 for key, value in tensors.items() if "model." in key},
        }

    folder = rewritten(llama, tmp_path, both)
    for kind in (head, base):
        result = verify(loaded(folder, kind), folder)
        assert result.verdict is WeightsVerdict.FAIL
        rows = {row.name: row for row in result.rows if row.kind is RowKind.LIVE}
        name = "model.norm.weight" if kind is head else "norm.weight"
        assert rows[name].reason == "ambiguous: the stored keys model.norm.weight and norm.weight are both for it"
        assert rows[name].checked == 0
        stored = {row.name: row for row in result.of_kind(RowKind.CHECKPOINT)}
        assert "model.norm.weight and norm.weight are both for" in stored["norm.weight"].reason


def test_a_model_with_both_names_is_ambiguous(llama, tmp_path):  # noqa: F811
    """Transformers itself exchanges the two: neither name is guessed."""
    from transformers import LlamaForCausalLM

    class TwoNorms(LlamaForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            self.norm = nn.LayerNorm(config.hidden_size, bias=False)
            self.post_init()

    def with_norm(tensors):
        return {**tensors, "norm.weight": torch.full((16,), 7.0)}

    folder = rewritten(llama, tmp_path, with_norm)
    model = loaded(folder, TwoNorms)
    stored = load_file(folder / "model.safetensors")
    assert torch.equal(model.norm.weight, stored["model.norm.weight"])  # what loading really does
    assert torch.equal(model.model.norm.weight, stored["norm.weight"])
    result = verify(model, folder)
    assert result.verdict is WeightsVerdict.FAIL
    rows = {row.name: row.reason for row in result.of_kind(RowKind.LIVE) if row.reason}
    assert set(rows) == {"norm.weight", "model.norm.weight"}
    assert all(
        "norm.weight and model.norm.weight" in text or "model.norm.weight and norm.weight" in text
        for text in rows.values()
    )
    plan = plan_of(model, folder)
    found = run_rule(ConversionAmbiguous, Facts(plan=plan)).findings
    assert found
    assert {key for item in found for key in item.evidence["keys"]} == {"norm.weight", "model.norm.weight"}


def test_a_copy_is_told_from_another_conversion():
    first, second = base_stage(), replacement_stage()
    for item in (*first, *second):
        item.rename_source_key("model.layers.0.mlp.experts.0.w2.weight")
        again = pristine(item)
        assert signature(again) == signature(item)
        assert not again.was_used()
    assert len({signature(item) for item in (*first, *second)}) == 5


def test_a_copy_of_a_group_waits_for_its_guard_again():
    from transformers.core_model_loading import GroupWeightRename

    group = GroupWeightRename(["norm0", "norm1"], ["norm1", "norm2"])
    assert group.rename_source_key("a.norm0.weight")[0] == "a.norm1.weight"
    assert group.rename_source_key("a.norm1.weight")[0] == "a.norm2.weight"
    assert pristine(group).rename_source_key("a.norm1.weight")[0] == "a.norm1.weight"
