"""No rule cries wolf about the classes that Transformers ships, as they are built from their own configurations."""

import warnings

import pytest
import torch

from shardlint import Severity
from shardlint.collect.model import model_facts
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.facts import Facts
from shardlint.introspect.walk import walk
from shardlint_rules.pack import shardlint_rules

SAMPLE = 72
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "depth")
# A model on meta is what D401 is about; heavy rules are not for models without values.
RULES = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code != "D401" and rule.cost.value == "light"]


def classes():
    """Every (model type, class) of the auto classes, ordered by type."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    mappings = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_MAPPING_NAMES,
    )
    for kind in sorted(transformers.CONFIG_MAPPING.keys()):
        for mapping in mappings:
            names = mapping.get(kind)
            name = names[0] if isinstance(names, (list, tuple)) else names
            if name is not None and hasattr(transformers, name):
                yield kind, name


def shrink(config):
    from transformers import PretrainedConfig

    for key, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            shrink(value)
        elif key in LAYERS and isinstance(value, int):
            setattr(config, key, min(value, 2))


def built(kind, name):
    """The model on meta, None when its own default configuration does not build it."""
    import transformers

    try:
        config = transformers.CONFIG_MAPPING[kind]()
        shrink(config)
        with torch.device("meta"):
            return getattr(transformers, name)(config)
    except Exception:
        return None


def alarms(pairs):
    found, count = [], 0
    for kind, name in pairs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = built(kind, name)
            if model is None:
                continue
            evaluation = evaluate(Facts(model=model_facts(walk(model))), RULES)
        count += 1
        found += [
            f"{name}: {item.code} {item.message}" for item in evaluation.findings if item.severity > Severity.INFO
        ]
        found += [f"{name}: {item.code} {item.reason}" for item in evaluation.outcomes if item.status is Status.CRASHED]
    return found, count


@pytest.mark.slow
def test_a_sample_of_stock_classes():
    pairs = list(classes())
    found, count = alarms(pairs[:: len(pairs) // SAMPLE])
    assert found == []
    assert count >= 60


@pytest.mark.exhaustive
def test_every_stock_class():
    found, count = alarms(classes())
    assert found == []
    assert count >= 500
