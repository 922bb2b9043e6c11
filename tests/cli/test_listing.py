"""`rule`, `rules`, `packs`, `config`, `schema`: what there is, and what the settings make of it."""

import json

import pytest

from shardlint.report import report_schema


def test_rules_lists_every_phase_and_counts(run):
    lines = run("rules").out.splitlines()
    assert "D4 materialization" in lines
    rules = [line for line in lines if line.startswith("  D4")]
    assert any(line.split()[:3] == ["D401", "meta-tensor-left", "error"] for line in rules)
    assert " rules; the engine's own findings are always on: SL001, SL002, " in " ".join(lines[-2:])


def test_rules_takes_selectors(run):
    shown = run("rules", "D401", "tie-not-real", "--output-format", "json")
    assert [item["code"] for item in json.loads(shown.out)] == ["D401", "D406"]
    assert run("rules", "nonsense").status == 2
    assert "SELECTOR" in run("rules", "nonsense").err


def test_enabled_says_for_every_rule_which_setting_decided(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "shardlint.yaml").write_text("lint:\n  ignore:\n    - D5\n  severity: {D401: warning}\n")
    shown = run("rules", "--enabled", "--ignore", "D1", "--extend-select", "D501").out
    rows = {line.split()[1]: line for line in shown.splitlines() if line[:3].strip() in ("on", "off")}
    assert rows["D101"].split()[0] == "off"
    assert rows["D101"].endswith("D1 by --ignore")
    assert rows["D502"].endswith("D5 by shardlint.yaml:3")
    assert rows["D501"].endswith("D501 by --extend-select")
    assert rows["D401"].endswith("ALL by default, severity by shardlint.yaml:4")
    assert set(rows) == {item["code"] for item in json.loads(run("rules", "--output-format", "json").out)}


def test_rules_as_json_say_everything(run):
    first = json.loads(run("rules", "D401", "--output-format", "json").out)[0]
    assert first["name"] == "meta-tensor-left"
    assert first["enabled"] is True
    assert first["decided_by"] == "default"
    assert first["pack"] == "shardlint"


@pytest.mark.parametrize("spelling", ["D401", "d401", "meta-tensor-left"])
def test_the_page_of_a_rule(run, spelling):
    shown = run("rule", spelling).out
    assert shown.startswith("D401 meta-tensor-left\n")
    for heading in ("What it does", "Why it is unsafe", "What to do"):
        assert f"\n{heading}\n  " in shown


def test_the_page_of_a_diagnostic_says_when_it_cannot_be_suppressed(run):
    assert "It cannot be suppressed." in run("rule", "SL001").out
    assert "It cannot be suppressed." not in run("rule", "SL003").out


def test_the_page_as_markdown_and_json(run):
    assert run("rule", "D401", "--output-format", "markdown").out.startswith("# D401 meta-tensor-left\n\n")
    page = json.loads(run("rule", "D401", "--output-format", "json").out)
    assert page["sections"].keys() >= {"What it does", "Why it is unsafe", "What to do"}


def test_all_pages(run):
    pages = json.loads(run("rule", "--all", "--output-format", "json").out)
    codes = [page["code"] for page in pages]
    assert codes[0] == "SL001"
    assert "D401" in codes
    assert len(set(codes)) == len(codes)


def test_an_unknown_rule_names_the_nearest(run):
    shown = run("rule", "meta-tensors-left")
    assert (shown.status, shown.out) == (2, "")
    assert "no rule 'meta-tensors-left' (did you mean 'meta-tensor-left'?); `shardlint rules` lists them" in shown.err
    assert run("rule").status == 2
    assert run("rule", "D401", "--all").status == 2


def test_packs_lists_the_built_in_pack(run):
    shown = run("packs")
    assert shown.status == 0
    assert shown.out.startswith("shardlint  ")
    assert "loaded" in shown.out
    packs = json.loads(run("packs", "--output-format", "json").out)["packs"]
    assert packs[0]["name"] == "shardlint"


def test_a_missing_required_pack_is_2_and_told(run):
    shown = run("packs", "--require-pack", "acme>=1.2")
    assert shown.status == 2
    assert "SL002 pack-failed" in shown.out
    assert "acme>=1.2" in shown.out


def test_a_local_pack_that_does_not_load_is_told_everywhere(run, tmp_path, clean):
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "shardlint.yaml").write_text("packs: {local: [broken.py]}\n")
    assert run("packs").status == 2
    assert "not today" in run("packs").out
    shown = run("lint", clean)
    assert shown.status == 2
    assert "SL002 pack-failed" in shown.out
    assert run("config", "validate").status == 2


def test_the_reporter_of_a_pack_is_used_by_name(run, tmp_path, faulty):
    (tmp_path / "mine.py").write_text(
        "from shardlint import API_VERSION, PackInfo, hookimpl\n"
        "@hookimpl\ndef shardlint_pack():\n    return PackInfo(name='mine', prefix='MINE', api=API_VERSION)\n"
        "def count(report, stream, options):\n    stream.write(f'{len(report.findings)} in all\\n')\n"
        "@hookimpl\ndef shardlint_reporters():\n    return {'count': count}\n"
    )
    (tmp_path / "shardlint.yaml").write_text("packs: {local: [mine.py]}\n")
    shown = run("lint", faulty, "--output-format", "count")
    assert (shown.status, shown.out) == (1, "2 in all\n")


NOISY = """
import sys
from shardlint import API_VERSION, PackInfo, hookimpl

def noisy(report, stream, options):
    print("by the way")
    stream.write("noisy\\n")

def leaving(report, stream, options):
    stream.write("half")
    sys.exit(0)

@hookimpl
def shardlint_pack():
    return PackInfo(name="mine", prefix="MINE", api=API_VERSION)

@hookimpl
def shardlint_reporters():
    return {"noisy": noisy, "leaving": leaving}
"""


def test_what_a_reporter_prints_stays_out_of_every_report(run, tmp_path, faulty):
    (tmp_path / "mine.py").write_text(NOISY)
    (tmp_path / "shardlint.yaml").write_text("packs: {local: [mine.py]}\n")
    shown = run("lint", faulty, "--output-format", "noisy:mine.txt", "--output-format", "json")
    assert json.loads(shown.out)["verdict"] == "FAIL"
    assert shown.err == "by the way\n"
    assert (tmp_path / "mine.txt").read_text() == "noisy\n"
    assert run("lint", faulty, "--output-format", "noisy").out == "noisy\n"


@pytest.mark.parametrize("target", ["leaving", "leaving:mine.txt"])
def test_a_reporter_that_exits_does_not_decide_the_run(run, tmp_path, faulty, target):
    (tmp_path / "mine.py").write_text(NOISY)
    (tmp_path / "shardlint.yaml").write_text("packs: {local: [mine.py]}\n")
    shown = run("lint", faulty, "--output-format", target)
    assert shown.status == 2
    assert shown.err == "Error: the output format 'leaving' failed: SystemExit: 0\n"
    assert not (tmp_path / "mine.txt").exists()


def test_config_init_writes_a_valid_file_once(run, tmp_path):
    assert run("config", "init").out == "wrote shardlint.yaml\n"
    assert run("config", "validate").status == 0
    written = (tmp_path / "shardlint.yaml").read_text()
    again = run("config", "init")
    assert again.status == 2
    assert "exists already" in again.err
    assert (tmp_path / "shardlint.yaml").read_text() == written
    assert run("config", "init", "-o", "-").out == written


def test_config_show_names_the_place_of_every_setting(run, tmp_path):
    assert "no configuration file" in run("config", "show").out
    (tmp_path / "shardlint.yaml").write_text("lint:\n  heavy: true\n")
    assert "lint.heavy: true  # shardlint.yaml:2" in run("config", "show").out
    assert json.loads(run("config", "show", "--output-format", "json").out)["values"] == {"lint": {"heavy": True}}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("lint: {ignore: [D501, D999]}\n", "SL006"),
        ("lint: {select: [D999]}\n", "'D999'"),
        ("lint: {options: {D401: {nonsense: 1}}}\n", "nonsense"),
        ("lint: {suppress: [{rule: D401, subject: '**', reason: x, expires: 2001-01-01}]}\n", "SL004"),
        ("report: {output-format: [texr]}\n", "did you mean 'text'?"),
    ],
)
def test_config_validate_checks_against_the_packs(run, tmp_path, text, found):
    (tmp_path / "shardlint.yaml").write_text(text)
    shown = run("config", "validate")
    assert shown.status == (0 if found == "SL006" else 2)
    assert ("every setting is valid" in shown.out) is (shown.status == 0)
    assert found in shown.out + shown.err


def test_two_configuration_files_in_one_folder_are_told(run, tmp_path):
    (tmp_path / "shardlint.yaml").write_text("version: 1\n")
    (tmp_path / ".shardlint.yaml").write_text("version: 1\n")
    assert run("config", "show").err.startswith("Warning: ")


@pytest.mark.parametrize("what", ["facts", "report", "config"])
def test_schemas(run, what):
    schema = json.loads(run("schema", what).out)
    assert "$schema" in schema
    if what == "report":
        assert schema == report_schema()


def test_config_schema_is_the_same_from_both_commands(run):
    assert run("config", "schema").out == run("schema", "config").out


HOUSE = "packs: {local: [house.py]}\nlint: {select: [HOUSE]}\n"
BROKEN = 'raise RuntimeError("no wood")\n'


@pytest.mark.parametrize("words", [("lint", "{facts}"), ("rules",), ("rules", "HOUSE"), ("rule", "HOUSE001")])
def test_a_rule_of_a_pack_that_failed_is_unknown_and_the_pack_is_named(run, tmp_path, clean, words):
    (tmp_path / "house.py").write_text(BROKEN)
    (tmp_path / "shardlint.yaml").write_text(HOUSE)
    done = run(*(str(clean) if word == "{facts}" else word for word in words))
    assert done.status == 2
    assert "importing it failed: RuntimeError: no wood" in done.err
    assert f"{tmp_path / 'house.py'}:1 in <module>" in done.err


def test_an_unknown_selector_of_a_file_has_its_place(run, tmp_path, clean):
    (tmp_path / "shardlint.yaml").write_text("lint:\n  select: [D4, D99]\n  severity: {D98: error}\n")
    done = run("lint", clean)
    assert done.status == 2
    assert "shardlint.yaml:2:16: lint.select[1]: 'D99' is not a rule" in done.err
    assert "shardlint.yaml:3:19: lint.severity.D98: 'D98' is not a rule" in done.err


def test_an_unknown_output_format_of_a_file_has_its_place(run, tmp_path, clean):
    (tmp_path / "shardlint.yaml").write_text("report:\n  output-format: [sarif, text]\n")
    for words in (("lint", clean), ("config", "validate")):
        done = run(*words)
        assert (done.status, done.out) == (2, "")
        assert "shardlint.yaml:2:18: report.output-format: no output format 'sarif'; valid: " in done.err


def test_an_unknown_phase_lists_the_phases(run, clean):
    done = run("lint", clean, "--select", "D9")
    assert done.status == 2
    assert "(the phases are D1, D2, D3, D4, D5, D6, D7, V0)" in done.err
    assert "did you mean" not in done.err


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("D799", "(D7 has D701 to D7"),
        ("d799", "(D7 has D701 to D7"),
        ("D999", "(codes begin with D1, D2, D3, D4, D5, D6, D7, SL, V0)"),
        ("XYZ001", "(codes begin with D1, D2, D3, D4, D5, D6, D7, SL, V0)"),
    ],
)
def test_an_unknown_code_says_which_there_are(run, code, hint):
    done = run("rule", code)
    assert done.status == 2
    assert hint in done.err


def test_the_list_of_rules_keeps_to_the_width(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("rules").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " rules; the engine's own findings are always on: SL001, SL002, " in " ".join(lines[-2:])
    assert lines[-1].startswith("  SL")
