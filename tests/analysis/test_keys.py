"""Checkpoint keys and live names: which key is for which name, and what was meant."""

import pytest

from shardlint.analysis.keys import (
    Candidates,
    KeyResolver,
    config_cuts,
    identity_reason,
    layer_counts,
    list_lengths,
)
from shardlint.testing import base_snapshot


def test_a_key_is_resolved_with_and_without_the_prefix_of_the_base_model():
    resolver = KeyResolver(base_snapshot("llama").model)
    assert resolver.prefix == "model."
    assert resolver.live_name("model.norm.weight") == "model.norm.weight"
    assert resolver.live_name("norm.weight") == "model.norm.weight"
    assert resolver.live_name("model.lm_head.weight") == "lm_head.weight"
    assert resolver.live_name("nothing.weight") is None


def test_identity_holds_for_plain_folders_only():
    assert identity_reason(base_snapshot("llama")) is None
    assert "a conversion maps" in identity_reason(base_snapshot("mixtral"))


@pytest.mark.parametrize(
    ("names", "lengths"),
    [
        (["layers.0.w", "layers.11.w", "layers.2.w"], {"layers": 12}),
        (["a.0.b.3.w", "a.1.b.0.w"], {"a": 2, "a.0.b": 4, "a.1.b": 1}),
        (["conv1.weight", "0.weight", "w.3"], {}),
    ],
)
def test_lengths_of_lists(names, lengths):
    assert list_lengths(names) == lengths


def test_what_a_smaller_configuration_cut():
    stored = {"num_hidden_layers": 32, "text": {"layers": 8}, "flag": True, "hidden": 64}
    assert config_cuts({"num_hidden_layers": 2, "text": {"layers": 4}, "flag": False, "hidden": 64}, stored) == {2, 4}
    assert config_cuts(None, stored) == set()
    assert layer_counts(stored) == {32, 8}


def test_candidates_prefer_the_same_numbers():
    candidates = Candidates(tuple(f"layers.{index}.up_proj.weight" for index in range(12)))
    assert candidates.near("layers.7.upproj.weight") == ("layers.7.up_proj.weight",)
    assert candidates.near("layers.99.upproj.weight") == ("layers.0.up_proj.weight",)
    assert candidates.near("zzz") == ()
