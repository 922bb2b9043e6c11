"""Names that wrappers and adapters add."""

import pytest

from shardlint.analysis.wrapper_names import (
    WRAPPER_SEGMENTS,
    adapted_module,
    base_name,
    is_saved_copy,
    may_be_adapters,
    without_wrappers,
)


def test_every_unambiguous_segment_of_a_wrapper_is_removed_and_a_child_called_module_stays():
    name = ".".join([*sorted(WRAPPER_SEGMENTS), "module", "weight"])
    assert {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"} <= WRAPPER_SEGMENTS
    assert without_wrappers(name) == "module.weight"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("base_model.model.model.q_proj.base_layer.weight", "model.q_proj.weight"),
        ("base_model.model.lm_head.original_module.weight", "lm_head.weight"),
        ("base_model.encoder.weight", "encoder.weight"),
        ("model.q_proj.weight", "model.q_proj.weight"),
        ("base_model.model.prompt_encoder.weight", "prompt_encoder.weight"),
        ("base_model.model.q_proj.lora_A.default.weight", None),
        ("q_proj.vera_lambda_b.default", None),
        ("q_proj.fourierft_spectrum.default", None),
        ("base_model.model.lm_head.modules_to_save.default.weight", None),
    ],
)
def test_the_name_in_the_base_model(name, base):
    assert base_name(name) == base
    assert base is not None or may_be_adapters(name)


@pytest.mark.parametrize(
    ("key", "module"),
    [
        ("base_model.model.model.q_proj.lora_A.weight", "model.q_proj"),
        ("model.q_proj.oft_R.weight", "model.q_proj"),
        ("base_model.model.lm_head.modules_to_save.weight", "lm_head"),
        ("model.q_proj.weight", None),
        ("lora_A.weight", None),
    ],
)
def test_the_module_that_an_adapter_changes(key, module):
    assert adapted_module(key) == module


def test_a_saved_copy_is_told_by_a_whole_segment():
    assert is_saved_copy("lm_head.modules_to_save.default.weight")
    assert not is_saved_copy("lm_head.modules_to_save_more.weight")
