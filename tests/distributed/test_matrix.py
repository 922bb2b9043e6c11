"""Architectures in layouts at moments are silent; planted faults are found with rule, object and ranks."""

import json

import pytest

from distributed.jobs import run_ranks
from distributed.matrix_worker import ARCHITECTURES, LAYOUTS

pytestmark = pytest.mark.distributed

FAULTS = {
    "nan": {"D408": [1]},
    "buffer": {"D313": [1]},
    "eval": {"D313": [1]},
    "frozen": {"D313": [1]},
    "rate": {"D313": [1]},
    "divisor": {"D304": []},
    "late": {"D304": []},
}
"""The rules that must speak, with the ranks that they must name (none: every rank)."""
SOUND = [f"sound/{architecture}/{layout}" for architecture in ARCHITECTURES for layout in LAYOUTS]
PLANTED = [f"fault/{architecture}/{fault}" for architecture in ("blocks", "llama", "gpt_neox") for fault in FAULTS]
SAMPLE = ["sound/blocks/fsdp2", "sound/vision/ddp", "fault/blocks/rate", "fault/blocks/divisor"]


def told(folder, world, cases):
    run_ranks(folder, world, "matrix_worker.py", *cases, limit=1200)
    reports = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    assert reports == [reports[0]] * world
    return reports[0]


def judge(reports):
    """What falls short: a finding on a sound model, a fault that its rule does not name."""
    short = []
    for case, moments in reports.items():
        kind, _, what = case.split("/")
        if kind == "sound":
            short += [(case, moment, finding) for moment, found in moments.items() for finding in found]
            continue
        named = [(code, ranks) for code, _, ranks, _ in moments["before"]]
        short += [(case, moments["before"]) for wanted in FAULTS[what].items() if wanted not in named]
    return short


def test_a_sample(tmp_path):
    assert not judge(told(tmp_path, 2, SAMPLE))


@pytest.mark.slow
def test_sound_models_are_silent_at_every_moment(tmp_path):
    assert not judge(told(tmp_path, 4, SOUND))


@pytest.mark.slow
def test_planted_faults_are_found(tmp_path):
    assert not judge(told(tmp_path, 4, PLANTED))
