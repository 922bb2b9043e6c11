"""Finding packs, leaving them out, requiring them, and local ones."""

import errno
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from shardlint.engine.runner import evaluate, to_selected
from shardlint.plugins import discovery
from shardlint.plugins.manager import NoPacksError, PackUsageError, load_packs
from shardlint.plugins.registry import PackState, PackStatus, Registry
from support.packs import BROKEN, forget, install, sample_facts


def pack(registry: Registry, name: str) -> PackStatus:
    (found,) = [status for status in registry.packs if status.name == name]
    return found


def local_pack(file: Path, name: str = "house", prefix: str = "HOU") -> Path:
    text = (BROKEN / "healthy.py").read_text()
    file.write_text(
        text.replace('"healthy"', f'"{name}"').replace("HEA", prefix).replace("always-found", f"{name}-rule")
    )
    return file


def test_the_built_in_pack_comes_through_the_same_group() -> None:
    registry = load_packs()
    status = registry.packs[0]
    assert (status.name, status.dist, status.status, status.prefix) == ("shardlint", "shardlint", PackState.LOADED, "")
    assert registry.diagnostics == ()
    assert status.rules == len(registry.rules)


def test_rules_are_ordered_by_phase_and_code(site: Path) -> None:
    for name in ("twin_b", "healthy"):
        install(site, name)
    keys = [(rule.phase, rule.code) for rule in load_packs().rules]
    assert keys == sorted(keys)


def test_rule_is_found_by_code_in_any_case_and_by_name(site: Path) -> None:
    install(site, "healthy")
    registry = load_packs()
    assert registry.rule("hea001") is registry.rule("always-found") is not None
    assert registry.rule("HEA") is None


def test_a_disabled_pack_runs_no_code(site: Path) -> None:
    install(site, "exits_on_import")
    registry = load_packs(disable=["exits_on_import"])
    assert registry.diagnostics == ()
    assert pack(registry, "exits_on_import").status is PackState.DISABLED
    assert "exits_on_import" not in sys.modules


def test_disabling_an_unknown_pack_is_a_usage_error(site: Path) -> None:
    install(site, "healthy")
    with pytest.raises(
        PackUsageError, match=r"cannot disable pack 'helthy': no such pack \(did you mean 'healthy'\?\)"
    ):
        load_packs(disable=["helthy"])


def test_disabling_every_pack_is_a_usage_error() -> None:
    with pytest.raises(PackUsageError, match="every pack is disabled"):
        load_packs(disable=["shardlint"])


def test_nothing_installed_is_an_error_and_no_green_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoPacksError, match="not properly installed"):
        load_packs(entry_points=())
    monkeypatch.setattr(discovery.metadata, "distributions", list)
    with pytest.raises(NoPacksError, match="pip install"):
        load_packs()


@pytest.mark.parametrize("wanted", ["healthy", "healthy>=1.2", "shardlint-healthy==1.5rc1", "Shardlint.Healthy<2"])
def test_a_required_pack_that_is_there(site: Path, wanted: str) -> None:
    install(site, "healthy", version="1.5rc1")
    assert load_packs(require=[wanted]).diagnostics == ()


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("healthy>=2", "required as 'healthy>=2', found 1.5; install a version that fits"),
        ("helthy", r"required as 'helthy' and not installed \(did you mean 'healthy'\?\)"),
        ("absent>=1", "required as 'absent>=1' and not installed; install it"),
        ("house>=1", "a local pack has no version; require 'house' alone"),
    ],
)
def test_a_required_pack_that_is_not_there(site: Path, tmp_path: Path, wanted: str, text: str) -> None:
    install(site, "healthy", version="1.5")
    registry = load_packs(require=[wanted], local=[local_pack(tmp_path / "house.py")])
    (finding,) = registry.diagnostics
    assert finding.code == "SL002"
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(finding.message)
    assert registry.rule("HEA001") is not None


def test_requiring_and_disabling_one_pack_is_told(site: Path) -> None:
    install(site, "healthy")
    (finding,) = load_packs(require=["healthy"], disable=["healthy"]).diagnostics
    assert "required as 'healthy' and disabled" in finding.message


@pytest.mark.parametrize(
    "wanted", ["", "acme>=", "acme[x]", "acme @ https://a.example/x.whl", "acme; python_version>'3'"]
)
def test_a_malformed_requirement_is_a_usage_error(wanted: str) -> None:
    with pytest.raises(PackUsageError, match="expected a pack name with an optional version"):
        load_packs(require=[wanted])


def test_of_two_copies_of_a_distribution_the_first_on_the_path_counts(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "healthy", version="1.0")
    newer = tmp_path / "newer"
    newer.mkdir()
    install(newer, "healthy", version="2.0")
    monkeypatch.syspath_prepend(str(newer))
    assert pack(load_packs(), "healthy").version == "2.0"


def test_a_copy_that_is_shadowed_by_one_without_packs_does_not_count(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "healthy")
    newer = tmp_path / "newer"
    newer.mkdir()
    install(newer, "healthy", version="2.0")
    (newer / "shardlint_healthy-2.0.dist-info" / "entry_points.txt").unlink()
    monkeypatch.syspath_prepend(str(newer))
    assert [status.name for status in load_packs().packs] == ["shardlint"]


def test_a_malformed_entry_point_file_of_somebody_else_does_no_harm(site: Path) -> None:
    install(site, "healthy")
    other = site / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_bytes(b"[console_scripts]\nno equals sign\n\xff\n")
    install(site, "rule_raises")
    points = site / "shardlint_rule_raises-1.0.dist-info" / "entry_points.txt"
    points.write_text("[console_scripts]\nno equals sign\n\n" + points.read_text())
    registry = load_packs()
    assert registry.diagnostics == ()
    assert {status.name for status in registry.packs} == {"shardlint", "healthy", "rule_raises"}


def test_nobody_else_may_be_called_shardlint(site: Path, tmp_path: Path) -> None:
    install(site, "healthy", pack="shardlint")
    local_pack(tmp_path / "house.py", name="shardlint")
    registry = load_packs(local=[tmp_path / "house.py"])
    (clash,) = [finding for finding in registry.diagnostics if finding.code == "SL008"]
    assert "pack name shardlint is claimed by" in clash.message
    assert "shardlint's own pack keeps it" in clash.message
    assert {rule.dist for rule in registry.rules} <= {"shardlint"}
    assert registry.packs[0].status is PackState.LOADED


def test_two_packs_of_one_name_are_refused_both(site: Path, tmp_path: Path) -> None:
    install(site, "healthy")
    registry = load_packs(local=[local_pack(tmp_path / "other.py", name="healthy", prefix="OTH")])
    (clash,) = registry.diagnostics
    assert (clash.code, clash.subject) == ("SL008", "healthy")
    assert "shardlint-healthy 1.0" in clash.message
    assert str(tmp_path / "other.py") in clash.message
    assert registry.rule("HEA001") is None
    assert registry.rule("OTH001") is None
    states = [status.status for status in registry.packs if status.name == "healthy"]
    assert states == [PackState.FAILED, PackState.FAILED]


def test_local_file(tmp_path: Path) -> None:
    local_pack(tmp_path / "house.py")
    registry = load_packs(local=["house.py"], base=tmp_path)
    rule = registry.rule("HOU001")
    assert rule is not None
    assert (rule.pack, rule.dist, rule.root) == ("house", "", str(tmp_path / "house.py"))
    assert registry.diagnostics == ()
    assert evaluate(sample_facts(), [to_selected(rule)]).findings


def test_local_folder_with_relative_imports(tmp_path: Path) -> None:
    folder = tmp_path / "checks"
    folder.mkdir()
    local_pack(folder / "rules.py")
    (folder / "__init__.py").write_text("from .rules import shardlint_pack, shardlint_rules\n")
    assert load_packs(local=[folder]).rule("HOU001") is not None


def test_an_edited_local_pack_is_read_anew(tmp_path: Path) -> None:
    file = local_pack(tmp_path / "house.py")
    assert load_packs(local=[file]).rule("HOU001") is not None
    local_pack(file, name="house", prefix="HOME")
    registry = load_packs(local=[file])
    assert registry.rule("HOU001") is None
    assert registry.rule("HOME001") is not None


def test_a_failed_local_pack_names_its_frame_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "house.py"
    file.write_text("import sys\n\nsys.exit('no')\n")
    before = set(sys.modules)
    (failure,) = load_packs(local=[file]).diagnostics
    assert failure.evidence["frame"] == f"{file}:3 in <module>"
    assert f"pack house (local pack {file}): importing it failed: SystemExit: no" in failure.message
    assert not [name for name in set(sys.modules) - before if "house" in name]


@pytest.mark.parametrize(
    ("name", "text"), [("absent.py", "does not exist"), ("plain", "without __init__.py"), ("notes.txt", "is neither")]
)
def test_a_path_that_is_no_pack(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "notes.txt").touch()
    (failure,) = load_packs(local=[tmp_path / name]).diagnostics
    assert failure.code == "SL002"
    assert text in failure.message


def test_a_local_pack_is_disabled_by_its_stem_or_by_its_name(tmp_path: Path) -> None:
    file = local_pack(tmp_path / "checks.py", name="house")
    for name in ("checks", "house"):
        registry = load_packs(local=[file], disable=[name])
        assert registry.rule("HOU001") is None
        assert pack(registry, name).status is PackState.DISABLED


def test_given_entry_points_replace_the_installed_ones(site: Path) -> None:
    install(site, "healthy")
    entry = metadata.EntryPoint("healthy", "healthy", "shardlint.packs")
    other = metadata.EntryPoint("pip", "pip", "console_scripts")
    registry = load_packs(entry_points=[entry, other])
    assert [status.name for status in registry.packs] == ["healthy"]
    forget("healthy")


def test_ctrl_c_while_a_pack_is_imported_stops_everything(tmp_path: Path) -> None:
    file = tmp_path / "house.py"
    file.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_packs(local=[file])


def test_a_format_that_two_packs_bring_stays_with_the_first(tmp_path: Path) -> None:
    for name, prefix in (("one", "ONE"), ("two", "TWO")):
        file = local_pack(tmp_path / f"{name}.py", name=name, prefix=prefix)
        hook = "\n\n@hookimpl\ndef shardlint_reporters():\n    return {'tally': print}\n"
        file.write_text(file.read_text() + hook)
    registry = load_packs(local=[tmp_path / "one.py", tmp_path / "two.py"])
    assert registry.reporters["tally"].pack == "one"
    (failure,) = registry.diagnostics
    assert "pack two" in failure.message
    assert "output format 'tally' is claimed by one" in failure.message
    assert pack(registry, "two").status is PackState.FAILED


def test_what_a_pack_prints_does_not_reach_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = local_pack(tmp_path / "house.py")
    file.write_text(
        file.read_text().replace("    return PackInfo", "    print('hello')\n    return PackInfo") + "print(1)\n"
    )
    assert load_packs(local=[file]).rule("HOU001") is not None
    assert capsys.readouterr() == ("", "1\nhello\n")


def test_evidence_holds_what_is_known(tmp_path: Path) -> None:
    (missing,) = load_packs(local=[tmp_path / "gone.py"]).diagnostics
    assert missing.evidence == {"step": "importing it", "pack": "gone"}


ODD = """
from shardlint import PackInfo, Rule, hookimpl


class Pack:
    @hookimpl
    def shardlint_pack(self):
        return PackInfo(name="odd", prefix="ODD", api={api!r}, docs_url={url!r})

    {more}


pack = Pack()


class Nothing:
    def __getattr__(self, name):
        raise RuntimeError("hands off")

    def __dir__(self):
        return ["shardlint_pack"]


nothing = Nothing()
"""


@pytest.mark.parametrize(
    ("value", "fields", "text"),
    [
        ("odd:pack", {}, None),
        ("odd:Pack", {}, "its entry point names the class Pack; name a module or an object"),
        ("odd:absent", {}, "importing it failed: AttributeError"),
        ("odd::", {}, "importing it failed"),
        ("not a module", {}, "importing it failed"),
        ("odd.missing.module", {}, "importing it failed: ModuleNotFoundError"),
        ("odd:nothing", {}, "importing it failed: RuntimeError: hands off"),
        ("odd:pack", {"api": "1"}, "PackInfo.api must be an integer, got '1'"),
        ("odd:pack", {"api": True}, "PackInfo.api must be an integer, got True"),
        ("odd:pack", {"url": None}, "PackInfo.docs_url must be a string, got None"),
        (
            "odd:pack",
            {"more": "@hookimpl(wrapper=True)\n    def shardlint_rules(self):\n        return (yield)"},
            "shardlint_rules() is a hook wrapper",
        ),
        ("odd:pack", {"more": "@hookimpl\n    def shardlint_rules(self):\n        return [Rule]"}, "base for rules"),
        ("odd:pack", {"more": "@hookimpl\n    def shardlint_reporters(self):\n        return {'A b': print}"}, "'A b'"),
    ],
)
def test_odd_entry_points(site: Path, value: str, fields: dict[str, object], text: str | None) -> None:
    (site / "odd.py").write_text(ODD.format(**{"api": 1, "url": "", "more": "", **fields}))
    registry = load_packs(entry_points=[metadata.EntryPoint("odd", value, "shardlint.packs")])
    if text is None:
        assert registry.diagnostics == ()
        return
    (failure,) = registry.diagnostics
    assert failure.code == "SL002"
    assert text in failure.message, failure.message


def test_a_built_in_rule_keeps_its_name(tmp_path: Path) -> None:
    builtin = load_packs().rules[0]
    file = local_pack(tmp_path / "house.py")
    file.write_text(file.read_text().replace('"house-rule"', f'"{builtin.name}"'))
    registry = load_packs(local=[file])
    (clash,) = registry.diagnostics
    assert (clash.code, clash.subject) == ("SL008", builtin.name)
    assert "the built-in rule keeps it" in clash.message
    assert registry.rule(builtin.name) == builtin
    assert registry.rule("HOU001") is None


def test_a_folder_of_rules_that_cannot_be_listed_is_no_empty_one(monkeypatch):
    """Out of file descriptors for a moment: that must not make a run without some rules that nobody misses."""
    listed = os.listdir

    def listdir(path="."):
        if str(path).endswith("v0_validation"):
            raise OSError(errno.EMFILE, "Too many open files")
        return listed(path)

    whole = {rule.code for rule in load_packs().rules}
    assert {"V002", "D501"} < whole
    monkeypatch.setattr(os, "listdir", listdir)
    registry = load_packs()
    assert not registry.rules
    (failure,) = registry.diagnostics
    assert failure.code == "SL002"
    assert "Too many open files" in failure.message
