"""Every Transformers model type: what save_pretrained writes is planned completely, and one planted fault is found."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from shardlint import Severity
from shardlint.facts import PlanFacts
from support.folders import Files, edit, in_two_files, read_files, write_files
from support.linting import facts_of, findings_of, mentions
from support.shrink import quiet, small

SEED = 20261130
SAMPLE = 160
ALL = (Path(__file__).parent / "model_types.txt").read_text().split()
CHOSEN = random.Random(SEED).sample(ALL, SAMPLE)

# Types of which something is known and right that the general test does not expect, each with its reason.
EXCEPTIONS: dict[str, str] = {}


def parameters() -> list[Any]:
    chosen = set(CHOSEN)
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.exhaustive) for name in ALL]


@pytest.fixture
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model of the type, saved by save_pretrained in two files; the tensors have no contents."""
    import torch

    built = small(request.param)
    if built is None:
        pytest.fail(f"{request.param} is in model_types.txt and no small configuration of it builds")
    config, kind = built
    with quiet():
        torch.manual_seed(0)
        kind(config).save_pretrained(tmp_path)
    write_files(tmp_path, in_two_files(read_files(tmp_path)["model.safetensors"]))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("saved", parameters(), indirect=True)
def test_type(saved: Path, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["saved"]
    facts = facts_of(saved)
    assert facts.plan is not None
    unplanned = [item for item in facts.plan.tensors if item.status not in ("loaded", "tied", "missing-ignored")]
    assert unplanned == []
    assert [item for item in facts.plan.leftovers if item.reason == "unexpected"] == []
    alarms = [item for item in findings_of(facts) if item.severity is not Severity.INFO]
    assert alarms == [] or name in EXCEPTIONS
    whole = read_files(saved)
    for plant in (dropped, renamed, reshaped, mapped_wrongly):
        write_files(saved, whole)
        plant(saved, facts.plan, random.Random(f"{SEED} {name}"))


def candidates(plan: PlanFacts, files: Files) -> list[str]:
    """Keys that exactly one untied live tensor needs, and that no ignore list of the class hides."""
    tied = {end for tie in plan.ties for end in (tie.name, tie.source)}
    tied |= {item.tied_to for item in plan.tensors if item.tied_to} | {
        item.name for item in plan.tensors if item.tied_to
    }
    stored = {key: shape for tensors in files.values() for key, (_, shape) in tensors.items()}
    return [
        key
        for item in plan.tensors
        if item.status == "loaded" and item.name not in tied
        for key in item.sources
        if len(stored[key]) >= 1 and 0 not in stored[key]
    ]


def expect(folder: Path, key: str, plan: PlanFacts, *codes: str) -> None:
    """Some finding of one of `codes` names the key or a live tensor that it fills."""
    names = [item.name for item in plan.tensors if key in item.sources]
    facts = facts_of(folder)
    assert facts.plan is not None
    hidden = {item.name for item in facts.plan.tensors if item.status == "missing-ignored"}
    if names and hidden.issuperset(names):
        return  # the class itself declares that this tensor may be missing
    found = [item for item in findings_of(facts, *codes) if item.severity is not Severity.INFO]
    assert any(mentions(item, key, *names) for item in found), (key, names, found)


def dropped(folder: Path, plan: PlanFacts, chance: random.Random) -> None:
    key = chance.choice(candidates(plan, read_files(folder)))

    def change(files: Files) -> None:
        for tensors in files.values():
            tensors.pop(key, None)

    edit(folder, change)
    expect(folder, key, plan, "D501", "D504", "D522")


def renamed(folder: Path, plan: PlanFacts, chance: random.Random) -> None:
    key = chance.choice(candidates(plan, read_files(folder)))
    stem, _, leaf = key.rpartition(".")
    new = f"{stem}_misnamed.{leaf}" if stem else f"{leaf}_misnamed"

    def change(files: Files) -> None:
        for name, tensors in files.items():
            files[name] = {new if item == key else item: value for item, value in tensors.items()}

    edit(folder, change)
    expect(folder, key, plan, "D501", "D504", "D522")


def reshaped(folder: Path, plan: PlanFacts, chance: random.Random) -> None:
    key = chance.choice(candidates(plan, read_files(folder)))

    def change(files: Files) -> None:
        for tensors in files.values():
            if key in tensors:
                dtype, shape = tensors[key]
                tensors[key] = (dtype, [*shape[:-1], shape[-1] + 1])

    edit(folder, change)
    expect(folder, key, plan, "D504", "D501")


def mapped_wrongly(folder: Path, plan: PlanFacts, chance: random.Random) -> None:
    files = read_files(folder)
    first, second = files
    key = chance.choice(list(files[first]))
    edit(folder, lambda _: {key: second})
    assert any(mentions(item, key) for item in findings_of(facts_of(folder), "D506"))


def test_the_sample_is_large_enough() -> None:
    assert len(set(CHOSEN)) >= 150
    assert set(EXCEPTIONS) <= set(ALL)
