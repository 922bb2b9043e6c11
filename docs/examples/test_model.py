"""A test that fails when the model does not lint clean: `pytest test_model.py`."""

from torch import nn

from shardlint.integrations.pytest import assert_clean


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def test_the_model_is_sound():
    assert_clean(build(), evaluated=["meta-tensor-left"])
