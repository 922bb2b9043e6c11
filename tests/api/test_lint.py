"""Linting from Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import shardlint
from shardlint.config import ConfigError, Settings
from shardlint.contract import Contract, Probe
from shardlint.engine.selection import SelectionError


class Block(torch.nn.Module):
    def __init__(self, meta=False):
        super().__init__()
        with torch.device("meta" if meta else "cpu"):
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def codes(report):
    return sorted({item.code for item in report.findings})


def test_a_clean_model():
    report = shardlint.lint(Block(), name="block")
    assert report.verdict is shardlint.Verdict.PASS
    assert report.exit_status == 0
    assert report.target == "block"
    assert report.metadata["model"]["parameters"] == 6
    report.raise_for_errors()


def test_one_exception_lists_all_errors():
    report = shardlint.lint(Block(meta=True))
    assert report.exit_status == 1
    with pytest.raises(shardlint.LintError) as caught:
        report.raise_for_errors()
    assert caught.value.report is report
    text = str(caught.value)
    assert text.startswith("shardlint found 6 errors\n")
    for layer in range(3):
        for name in ("weight", "bias"):
            assert f"D401 meta-tensor-left layers.{layer}.{name}: " in text


def test_a_run_that_cannot_be_trusted_raises_as_well():
    report = shardlint.lint(Block(), select=["D502"])
    assert report.verdict is shardlint.Verdict.BLOCKED
    with pytest.raises(shardlint.LintError, match="not trustworthy: D502"):
        report.raise_for_errors()


def test_findings_alone_never_raise():
    assert codes(shardlint.lint(Block(meta=True))) == ["D401"]


def test_a_checkpoint_and_a_load_report(empty_folder):
    model = Block()
    tensors = {name: value.clone() for name, value in model.state_dict().items() if name != "layers.2.bias"}
    save_file(tensors, empty_folder / "model.safetensors")
    info = {"missing_keys": ["layers.2.bias"], "unexpected_keys": []}
    report = shardlint.lint(model, checkpoint=empty_folder, load_info=info)
    assert codes(report) == ["D501"]
    assert report.coverage["status"] == "INCOMPLETE"
    assert report.coverage["missing"] == ("layers.2.bias",)


def test_without_a_load_report_coverage_is_not_loaded():
    assert shardlint.lint(Block()).coverage["status"] == "NOT_LOADED"


def test_a_contract_is_held():
    report = shardlint.lint(Block(), contract=Contract(probes=(Probe(glob="*.scale"),)))
    assert codes(report) == ["V001"]


def test_a_target_says_everything_at_once():
    target = shardlint.Target(model=Block(meta=True), name="all")
    assert shardlint.lint(target).target == "all"
    assert shardlint.lint(target, name="other").target == "other"


def test_selection_and_severity_beat_the_file(empty_folder):
    (empty_folder / "shardlint.yaml").write_text("lint: {ignore: [D4]}\n")
    model = Block(meta=True)
    assert codes(shardlint.lint(model)) == []
    assert codes(shardlint.lint(model, config=False)) == ["D401"]
    assert codes(shardlint.lint(model, extend_select=["D401"])) == ["D401"]
    report = shardlint.lint(model, config=False, severity={"D401": "warning"})
    assert report.findings[0].severity is shardlint.Severity.WARNING
    assert report.exit_status == 0
    assert codes(shardlint.lint(model, config=False, ignore=["D401"])) == []


def test_settings_may_be_given_as_a_path_or_ready_made(empty_folder):
    (empty_folder / "other.yaml").write_text("lint: {fail-level: never}\n")
    model = Block(meta=True)
    assert shardlint.lint(model, config="other.yaml").exit_status == 0
    assert shardlint.lint(model, config=empty_folder / "other.yaml").fail_level is None
    assert shardlint.lint(model, config=Settings()).exit_status == 1


def test_mistakes_are_exceptions_of_their_own(empty_folder):
    with pytest.raises(SelectionError, match="did you mean"):
        shardlint.lint(Block(), select=["meta-tensor-lef"])
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        shardlint.lint(Block(), config="nowhere.yaml")
    with pytest.raises(ValueError, match=r"expected a torch\.nn\.Module"):
        shardlint.lint("a model")


@pytest.mark.parametrize("model", [None, shardlint.Target(optimizer=object())])
@pytest.mark.parametrize("call", [shardlint.lint, shardlint.snapshot])
def test_nothing_to_look_at_is_never_a_pass(call, model):
    with pytest.raises(ValueError, match="expected a model or a checkpoint to look at, got neither"):
        call(model)


def test_a_single_string_of_selectors_is_one_selector():
    assert {item.code for item in shardlint.lint(Block(), select="D401").outcomes} == {"D401"}


def test_snapshot_and_lint_facts_give_what_lint_gives():
    model = Block(meta=True)
    facts = shardlint.snapshot(model, config=False)
    assert isinstance(facts, shardlint.Facts)
    replayed = shardlint.lint_facts(facts)
    assert replayed == shardlint.lint(model, config=False)
    assert replayed.findings


def test_the_model_is_what_it_was_before():
    model = Block().train()
    before = {name: (value.clone(), value.requires_grad) for name, value in model.named_parameters()}
    rng = torch.random.get_rng_state()
    shardlint.lint(model)
    assert torch.equal(rng, torch.random.get_rng_state())
    assert model.training
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name][0])
        assert value.requires_grad is before[name][1]
        assert value.grad is None


def test_str_of_the_report_is_the_text():
    text = str(shardlint.lint(Block(meta=True)))
    assert "error D401 meta-tensor-left (6 findings)" in text
    assert text.splitlines()[-1].endswith("| FAIL")


def test_the_package_exports_what_it_says_and_imports_no_torch():
    code = (
        "import sys, shardlint\n"
        "missing = [name for name in shardlint.__all__ if not hasattr(shardlint, name)]\n"
        "assert set(shardlint.__all__) <= set(dir(shardlint))\n"
        "shardlint.facts, shardlint.names, shardlint.contract, shardlint.testing\n"
        "print(missing, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        shardlint.nonsense  # noqa: B018


def test_type_checkers_see_the_exports(tmp_path):
    source = Path(shardlint.__file__).read_text()
    late = {name for names in shardlint._NAMES_OF.values() for name in names}
    assert late | {"__version__", "PUBLIC_MODULES"} == set(shardlint.__all__)
    block = source.partition("if TYPE_CHECKING:")[2].partition("_NAMES_OF")[0]
    assert all(name in block for name in late)


def test_reports_are_equal_for_every_hash_seed(tmp_path):
    code = (
        "import torch, shardlint\n"
        "m = torch.nn.ModuleList(torch.nn.Linear(2, 2, device='meta') for _ in range(12))\n"
        "print(shardlint.lint(m, config=False, name='m'))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
