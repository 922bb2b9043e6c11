"""A real third-party distribution: built, installed with pip, found, and run by the real command in a process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardlint.facts.codec import encode_facts
from support.packs import ACME, install, sample_facts, tensor


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed the pack into."""
    folder = tmp_path_factory.mktemp("acme")
    source, site = folder / "source", folder / "site"
    shutil.copytree(ACME, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture
def facts_file(tmp_path: Path) -> Path:
    big = tensor("layers.0.weight", (2**16, 2**16))
    facts = sample_facts(big, tensor("layers.1.weight"), tensor("norm.weight", (4,), "bfloat16"))
    file = tmp_path / "facts.json"
    file.write_bytes(encode_facts(facts))
    return file


def python(site: Path, *arguments: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done


def shardlint(site: Path, *arguments: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
    return python(site, "-m", "shardlint", *arguments, status=status)


def lint(site: Path, facts_file: Path, *arguments: str, status: int) -> dict:
    command = ("lint", str(facts_file), "--isolated", "--output-format", "json", *arguments)
    return json.loads(shardlint(site, *command, status=status).stdout)


def test_the_pack_is_listed_with_its_distribution(acme: Path) -> None:
    listed = json.loads(shardlint(acme, "packs", "--isolated", "--output-format", "json").stdout)
    (pack,) = [item for item in listed["packs"] if item["name"] == "acme"]
    assert (pack["dist"], pack["version"], pack["status"], pack["rules"]) == ("shardlint-acme", "1.2.0", "loaded", 2)
    assert (pack["prefix"], pack["api"]) == ("ACM", 1)
    assert pack["issues_url"] == "https://acme.example/shardlint-acme/issues"


def test_its_rules_are_explained_and_find_what_they_should(acme: Path, facts_file: Path) -> None:
    assert "Acme's fused kernels index with 32 bits" in shardlint(acme, "rule", "oversized-tensor").stdout
    report = lint(acme, facts_file, "--select", "ACM", status=1)
    found = {(finding["code"], finding["subject"], finding["severity"]) for finding in report["findings"]}
    assert found == {("ACM001", "layers.0.weight", "error"), ("ACM002", "norm.weight", "warning")}


def test_options_reach_the_rule(acme: Path, facts_file: Path, tmp_path: Path) -> None:
    config = tmp_path / "shardlint.yaml"
    config.write_text("lint:\n  select: [ACM001]\n  options:\n    ACM001:\n      limit: 9999999999\n")
    done = shardlint(acme, "lint", str(facts_file), "--config", str(config))
    assert "layers.0.weight" not in done.stdout
    config.write_text("lint:\n  options:\n    oversized-tensor:\n      limit: -1\n")
    done = shardlint(acme, "lint", str(facts_file), "--config", str(config), status=2)
    assert f"{config}:4:" in done.stderr
    assert "limit" in done.stderr


def test_it_is_left_out_or_required_on_demand(acme: Path, facts_file: Path) -> None:
    report = lint(acme, facts_file, "--disable-pack", "acme", status=0)
    assert not [outcome for outcome in report["outcomes"] if outcome["code"].startswith("ACM")]
    lint(acme, facts_file, "--select", "ACM002", "--require-pack", "acme>=1.2", status=0)
    report = lint(acme, facts_file, "--select", "ACM002", "--require-pack", "acme>=2", status=2)
    assert [finding["code"] for finding in report["findings"]] == ["SL002", "ACM002"]


def test_its_output_format_is_used(acme: Path, facts_file: Path) -> None:
    command = ("lint", str(facts_file), "--isolated", "--select", "ACM", "--output-format", "acme-tally")
    assert shardlint(acme, *command, status=1).stdout.splitlines()[0] == "FAIL ACM001=1 ACM002=1"


def test_a_broken_neighbour_costs_it_nothing(acme: Path, facts_file: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(acme, site)
    alone = lint(acme, facts_file, status=1)
    install(site, "exits_on_import")
    install(site, "rule_changes_facts")
    report = lint(site, facts_file, status=2)
    assert [item for item in report["findings"] if not item["code"].startswith("SL")] == alone["findings"]
    assert [item["code"] for item in report["findings"] if item["code"].startswith("SL")] == ["SL001", "SL002"]
    assert report["verdict"] == "BLOCKED"


IN_PYTHON = """
import json, sys
from shardlint import Facts, Target
from shardlint.contract import ContractQuery
from shardlint.plugins.manager import load_packs

registry = load_packs()
imported = ["torch" in sys.modules, "shardlint_acme.reporter" in sys.modules]
answers = registry.contracts(ContractQuery(key="acme-lm", kind="model_type"))

class Model:
    acme_lazy_buffers = ("rope.*",)

(collector,) = registry.collectors
print(json.dumps({
    "torch and reporter imported": imported,
    "answers": [[answer.error, answer.contract.name, answer.pack] for answer in answers],
    "for llama": list(registry.contracts(ContractQuery(key="llama", kind="model_type"))),
    "collector": [collector.name, collector.section, collector.dist],
    "of a model": list(collector.collect(Target(model=Model()), None, Facts()).lazy_buffers),
    "of nothing": collector.collect(Target(), None, Facts()),
}))
"""


def test_its_contract_and_its_collector(acme: Path) -> None:
    assert json.loads(python(acme, "-c", IN_PYTHON).stdout) == {
        "torch and reporter imported": [False, True],
        "answers": [["", "acme-lm", "acme"]],
        "for llama": [],
        "collector": ["acme-lazy-buffers", "contract", "shardlint-acme"],
        "of a model": ["rope.*"],
        "of nothing": None,
    }
