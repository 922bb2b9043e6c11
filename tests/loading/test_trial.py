"""Configurations with large numbers are tried in a process that is ended, whatever thread asks."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shardlint.facts import CheckpointFacts, freeze
from shardlint.loading import trial
from shardlint.loading.build_limits import BuildGivenUp
from shardlint.loading.loader import PlanUnknownError
from shardlint.loading.meta_model import build_meta_model

LEVIT = {"model_type": "levit", "architectures": ["LevitModel"], "image_size": 16384}


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 80, "hidden_size": 16384, "vocab_size": 262144, "rope_theta": 1e7},
        {"max_position_embeddings": 10_485_760, "text_config": {"num_experts": 512}, "eos_token_id": 2**40},
        {"id2label": {str(number): "x" for number in range(100_000)}, "scale": float("inf")},
    ],
)
def test_ordinary_numbers_need_no_process(config):
    assert trial.is_ordinary(config)


@pytest.mark.parametrize(
    "config",
    [
        LEVIT,
        {"depth_coefficient": 1e7},
        {"attention_types": [[["global", "local"], 2**27]]},
        {"num_labels": 2**24},
        {"vision_config": {"num_hidden_layers": 50_000}},
        {"layer_types": ["full"] * 5000},
        {"odd_number": -(2**20)},
    ],
)
def test_what_may_grow_is_tried(config):
    assert not trial.is_ordinary(config)


def test_building_without_an_end_is_given_up_from_a_thread(monkeypatch):
    monkeypatch.setattr(trial, "CPU_SECONDS", 1)
    checkpoint = CheckpointFacts(path="x", format="safetensors", config=freeze(LEVIT))
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(build_meta_model, checkpoint)
        with pytest.raises(PlanUnknownError, match="given up: more than 1 seconds of processor time"):
            building.result()


def test_a_process_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(trial, "WALL_SECONDS", 0.2)
    monkeypatch.setattr(trial, "_START", "import time; time.sleep(100)")
    with pytest.raises(BuildGivenUp, match=r"more than 0\.2 seconds"):
        trial.try_building({})


def test_memory_of_the_process_is_bounded(monkeypatch):
    monkeypatch.setattr(trial, "_START", f"raise SystemExit({trial._NO_MEMORY})")
    with pytest.raises(BuildGivenUp, match="4096 MiB of memory"):
        trial.try_building({})
