"""What Transformers found nothing for and its initialiser passes over is memory, whatever it holds."""

import pytest
import torch

from shardlint import Severity, Target
from shardlint.collect import collect
from shardlint.testing import assert_findings, assert_rule_clean, run_rule
from shardlint_rules.d4_materialization.never_written import NeverWritten

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def loaded(family, head, folder, *, report=True):
    """The model with a head, loaded from a checkpoint of the model without one."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**SIZES)
    getattr(transformers, f"{family}Model")(config).save_pretrained(folder)
    model, info = getattr(transformers, f"{family}{head}").from_pretrained(folder, output_loading_info=True)
    return model, Target(model=model, checkpoint=str(folder), load_info=info if report else None)


@pytest.mark.parametrize("report", [True, False])
@pytest.mark.parametrize(
    ("family", "bias"), [("Nystromformer", "cls.predictions.bias"), ("Data2VecText", "lm_head.bias")]
)
def test_a_bias_without_a_branch_of_the_initialiser(family, bias, report, tmp_path):
    model, target = loaded(family, "ForMaskedLM", tmp_path, report=report)
    found = run_rule(NeverWritten, collect(target))
    assert_findings(found, bias)
    assert found.findings[0].severity is Severity.ERROR
    with torch.no_grad():
        model.get_parameter(bias).zero_()
    assert_rule_clean(run_rule(NeverWritten, collect(target)))


@pytest.mark.parametrize(("family", "head"), [("Bert", "ForSequenceClassification"), ("Bert", "ForMaskedLM")])
def test_a_head_that_is_initialised_is_written(family, head, tmp_path):
    _, target = loaded(family, head, tmp_path)
    facts = collect(target)
    assert facts.values.uninitialised == ()
    assert_rule_clean(run_rule(NeverWritten, facts))


def test_constants_that_the_checkpoint_holds_are_written(tmp_path):
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**SIZES))
    with torch.no_grad():
        model.pooler.dense.weight.zero_()
        model.encoder.layer[0].output.dense.weight.fill_(0.5)
    model.save_pretrained(tmp_path)
    again, info = BertModel.from_pretrained(tmp_path, output_loading_info=True)
    facts = collect(Target(model=again, checkpoint=str(tmp_path), load_info=info))
    assert_rule_clean(run_rule(NeverWritten, facts))
    with torch.no_grad():
        again.embeddings.word_embeddings.weight.zero_()
        again.pooler.dense.weight.fill_(0.25)
    facts = collect(Target(model=again, checkpoint=str(tmp_path), load_info=info))
    assert_findings(run_rule(NeverWritten, facts), "embeddings.word_embeddings.weight", "pooler.dense.weight")
