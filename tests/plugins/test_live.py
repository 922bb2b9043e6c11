"""Packs that touch live models: their collectors and contracts, sound and broken, through `shardlint.lint`."""

import json
from pathlib import Path

import pytest
import torch

from shardlint.api import lint, snapshot

PACK = """
from shardlint import PackInfo, hookimpl
from shardlint.contract import Contract
from shardlint.facts import ContractFacts, Facts


@hookimpl
def shardlint_pack():
    return PackInfo(name="house", prefix="HOUSE", api=1)


class Collector:
    name = "house-buffers"
    section = "contract"

    def collect(self, target, walk, facts):
        {collect}


@hookimpl
def shardlint_collectors():
    return [Collector()]


@hookimpl
def shardlint_contracts(query):
    {provide}
"""


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.config = type("Config", (), {"model_type": "house", "to_dict": lambda self: {"model_type": "house"}})()


def config(
    folder: Path, *, section: str = "contract", collect: str = "return None", provide: str = "return None"
) -> Path:
    (folder / "house.py").write_text(PACK.format(section=section, collect=collect, provide=provide))
    file = folder / "shardlint.yaml"
    file.write_text("packs:\n  local: [house.py]\n")
    return file


def test_a_collector_adds_to_its_section(tmp_path: Path) -> None:
    collect = "return ContractFacts(source='house', lazy_buffers=(type(target.model).__name__, str(walk is not None)))"
    facts = snapshot(Model(), config=config(tmp_path, collect=collect))
    assert facts.contract is not None
    assert facts.contract.lazy_buffers == ("Model", "True")


@pytest.mark.parametrize(
    ("collect", "text"),
    [
        ("raise ValueError('no buffers')", "ValueError: no buffers"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("return {'source': 'house'}", "takes ContractFacts, the collector returned dict"),
    ],
)
def test_a_collector_that_fails_is_named_and_the_rest_is_linted(tmp_path: Path, collect: str, text: str) -> None:
    report = lint(Model(), config=config(tmp_path, collect=collect))
    (failure,) = [finding for finding in report.findings if finding.code == "SL002"]
    assert failure.message.startswith("pack house (local pack ")
    assert "collector house-buffers" in failure.message
    assert text in failure.message
    assert report.exit_status == 2
    statuses = {outcome.code: outcome.status.value for outcome in report.outcomes}
    assert statuses["D401"] == "clean"


def test_a_contract_of_a_pack_is_found_by_model_type(tmp_path: Path) -> None:
    facts = snapshot(Model(), config=config(tmp_path, provide="return Contract(name=query.kind + ' ' + query.key)"))
    assert facts.contract is not None
    assert facts.contract.name == "model_type house"


@pytest.mark.parametrize(
    ("provide", "text"),
    [("raise KeyError('house')", "raised KeyError: 'house'"), ("return 3", "returned int, expected a")],
)
def test_a_provider_that_fails_is_a_finding_about_the_contract(tmp_path: Path, provide: str, text: str) -> None:
    report = lint(Model(), config=config(tmp_path, provide=provide))
    (finding,) = [finding for finding in report.findings if finding.code == "D102"]
    assert text in finding.message
    assert "house" in json.dumps(finding.subject)
    assert report.exit_status == 1
