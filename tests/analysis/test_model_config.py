"""What a configuration says, read in one way."""

from shardlint.analysis.model_config import (
    LOADED_QUANTISATION,
    all_integers,
    config_number,
    is_quantised,
    own_number,
    quantisation_settings,
    text_part,
)


def test_numbers_are_positive_and_whole_and_the_own_part_comes_first():
    config = {"heads": True, "hidden": 0, "text_config": {"heads": 8, "hidden": 64}, "layers": 2}
    assert config_number(config, "heads") == 8
    assert config_number(config, "none", "hidden") == 64
    assert own_number(config, "heads", "layers") == 2
    assert config_number(None, "heads") is None
    assert dict(all_integers(config)) == {"hidden": 0, "text_config.heads": 8, "text_config.hidden": 64, "layers": 2}


def test_quantisation_is_found_in_the_text_part_and_under_either_key():
    inner = {"text_config": {"quantization_config": {"bits": 4}}}
    assert quantisation_settings(inner) == {"bits": 4}
    packed = {"compression_config": {"format": "pack"}}
    assert quantisation_settings(packed) == {"format": "pack"}
    assert quantisation_settings(packed, LOADED_QUANTISATION) is None
    assert is_quantised(inner)
    assert is_quantised(packed)
    assert is_quantised({"quantization_config": "unreadable"})
    assert not is_quantised({"quantization_config": {}})
    assert not is_quantised(None)


def test_the_part_that_holds_the_tokens():
    text, vision = {"model_type": "llama"}, {"model_type": "vit"}
    assert text_part({"hidden": 4}) == {"hidden": 4}
    assert text_part({"text_config": text}) == text
    assert text_part({"text_config": text, "vision_config": vision}) is None
    assert text_part({"vision_config": vision}) is None
