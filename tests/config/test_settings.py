import json
import os
from datetime import date
from pathlib import Path

import pytest

from shardlint import Severity
from shardlint.config import (
    TEMPLATE,
    ConfigError,
    Settings,
    config_reference,
    config_schema,
    load_settings,
    render_settings,
)
from shardlint.config.nodes import MAX_BYTES
from shardlint.config.schema import SETTINGS, all_keys
from shardlint.engine.source import SettingSource


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder of its own, with a `.git` so that nothing above it is found."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, text):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def problems(text, name="shardlint.yaml"):
    write(name, text)
    with pytest.raises(ConfigError) as error:
        load_settings(Path.cwd())
    return [str(problem) for problem in error.value.problems]


FULL = """\
version: 1
packs: {require: [acme], disable: other, local: [lint/rules.py]}
lint:
  select: [D3, D501]
  extend-select: V002
  ignore: [D302]
  fail-level: warning
  heavy: yes
  severity: {D311: off, D5: info}
  options:
    some-rule: {limit: 3, nested: {a: [off]}}
  suppress:
    - rule: [D501, D504]
      subject: "layers.*.inv_freq"
      reason: rebuilt
      expires: 2026-12-31
      expect: 32
    - {rule: coverage-incomplete, subject: "**", reason: r}
checkpoint:
  renames: [{from: "a.*", to: "b.*"}]
  allow-overlay: true
expert-axes: [ep, efsdp]
report: {output-format: [text, "json:out.json"]}
"""


def full_toml():
    return """\
[project]
name = "x"
[tool.shardlint]
version = 1
packs = { require = ["acme"], disable = ["other"], local = ["lint/rules.py"] }
expert-axes = ["ep", "efsdp"]
[tool.shardlint.lint]
select = ["D3", "D501"]
extend-select = "V002"
ignore = ["D302"]
fail-level = "warning"
heavy = true
severity = { D311 = "off", D5 = "info" }
options.some-rule = { limit = 3, nested.a = ["off"] }
[[tool.shardlint.lint.suppress]]
rule = ["D501", "D504"]
subject = "layers.*.inv_freq"
reason = "rebuilt"
expires = 2026-12-31
expect = 32
[[tool.shardlint.lint.suppress]]
rule = "coverage-incomplete"
subject = "**"
reason = "r"
[tool.shardlint.checkpoint]
renames = [{ from = "a.*", to = "b.*" }]
allow-overlay = true
[tool.shardlint.report]
output-format = ["text", "json:out.json"]
"""


@pytest.mark.parametrize(("name", "text"), [("shardlint.yaml", FULL), ("pyproject.toml", full_toml())])
def test_everything_is_read(name, text, folder):
    write(name, text)
    settings = load_settings(folder)
    assert settings.file == folder / name
    assert settings.packs.require == ("acme",)
    assert settings.packs.disable == ("other",)
    assert settings.packs.local == (folder / "lint/rules.py",)
    assert (settings.fail_level, settings.heavy) == (Severity.WARNING, True)
    assert settings.options == {"some-rule": {"limit": 3, "nested": {"a": ("off",)}}}
    first, second = settings.suppressions
    assert (first.rules, first.subject, first.reason) == (("D501", "D504"), "layers.*.inv_freq", "rebuilt")
    assert (first.expires, first.expect) == (date(2026, 12, 31), 32)
    assert (second.rules, second.expires, second.expect) == (("coverage-incomplete",), None, None)
    assert settings.checkpoint.renames == (("a.*", "b.*"),)
    assert settings.checkpoint.allow_overlay
    assert settings.expert_axes == ("ep", "efsdp")
    assert settings.output_format == ("text", "json:out.json")
    (layer,) = settings.layers
    assert [item.selector for item in layer.select] == ["D3", "D501"]
    assert [item.selector for item in layer.extend_select] == ["V002"]
    assert [item.selector for item in layer.ignore] == ["D302"]
    assert [(item.selector, item.severity) for item in layer.severity] == [("D311", None), ("D5", Severity.INFO)]
    assert settings.contract is None


def test_every_setting_knows_its_place(folder):
    write("shardlint.yaml", FULL)
    settings = load_settings(folder)
    assert [str(item.source) for item in settings.layers[0].select] == ["shardlint.yaml:4", "shardlint.yaml:4"]
    assert settings.layers[0].select[1].source == SettingSource("shardlint.yaml", 4, 16, "lint.select[1]")
    assert [str(item.source) for item in settings.suppressions] == ["shardlint.yaml:13", "shardlint.yaml:18"]
    assert str(settings.source("lint.heavy")) == "shardlint.yaml:8"
    assert str(settings.source("version")) == "shardlint.yaml:1"
    assert str(settings.source("contract.name")) == "default"
    assert (settings.get("lint.heavy"), settings.get("contract.data.deterministic-replay")) == (True, False)


CONTRACT = """\
contract:
  name: acme-moe
  probes:
    - {glob: "model.embed*", required: false, stages: [load, train], comparison: numeric, replica-check: true}
    - glob: "head.weight"
    - "norm.weight"
  invariants:
    - {name: rope, checker: "acme.checks:rope.whole", phase: structure}
  training-only-targets: ["value_head.*"]
  inference-only-sources: ["*.inv_freq"]
  logical-shapes: {"**.embed.weight": [5, 4]}
  data:
    forward-fields: [input_ids]
    runtime-fields: [position_ids]
    context-parallel-replicated: [cu_seqlens]
    modality-fields: {image: [pixel_values]}
    modality-parameters: {image: ["vision.*"]}
    labels-shifted: false
    deterministic-replay: true
    processor-revision-required: true
  shared-state: [{name: kv, producers: ["layers.0"], consumers: ["layers.1"]}]
  topology: [{name: experts, axis: ep, divides: num_experts, minimum: 2}, {name: heads, axis: tp, divides: 64}]
  parity-cases: [{name: attention, module: "layers.0.attn", reference: "acme.reference:attention"}]
  replacements: [{pattern: "layers.*.mlp", replacement: MoE}, Linear]
  placeholders: [Stub]
  lazy-buffers: ["*.cache"]
  ties: [[lm_head.weight, embed.weight]]
  recipes: [{buffer: "*.slopes", recipe: "acme.recipes:slopes"}]
"""


def test_the_whole_contract(folder):
    write("shardlint.yaml", CONTRACT)
    contract = load_settings(folder).contract
    assert contract["probes"][0] == {
        "glob": "model.embed*",
        "required": False,
        "stages": ("load", "train"),
        "comparison": "numeric",
        "replica-check": True,
    }
    assert contract["invariants"] == ({"name": "rope", "checker": "acme.checks:rope.whole", "phase": "structure"},)
    assert contract["data"]["modality-fields"] == {"image": ("pixel_values",)}
    assert contract["data"]["labels-shifted"] is False
    assert contract["probes"][1:] == ({"glob": "head.weight"}, {"glob": "norm.weight"})
    assert contract["topology"] == (
        {"name": "experts", "axis": "ep", "divides": "num_experts", "minimum": 2},
        {"name": "heads", "axis": "tp", "divides": 64},
    )
    assert contract["replacements"][1] == {"pattern": "Linear"}
    assert set(contract) == {key.name for key in next(key for key in SETTINGS.keys if key.name == "contract").kind.keys}


def test_all_errors_of_a_file_at_once():
    found = problems("""\
version: 2
extend: base.yaml
lint:
  selct: [D3]
  select: [D3, 4, "", [x]]
  fail-level: fatal
  heavy: maybe
  severity: {D302: warn, D303: true}
  options: {D302: 3}
  suppress:
    - {rule: D3, subject: "a", expires: tomorrow}
    - {rule: [], subject: "", reason: " ", expect: 0, expires: 2026-1-1, line: 3}
    - rule-crashed
    - {rule: SL001, subject: "a", reason: never}
contract:
  probes: [{comparison: fuzzy, glob: ""}, {required: sometimes}]
  invariants:
    - {name: "", checker: "no colon", phase: runtime}
    - {name: a, checker: "m:f"}
    - {name: a, checker: "m:g"}
  data: [x]
  topology: [{name: bounds, minimum: 0, divides: []}]
  shared-state: kv
checkpoint: {renames: [{from: a}]}
packs: {local: [~]}
report: text
""")
    assert found == [
        "shardlint.yaml:1:10: version: expected 1, got 2",
        "shardlint.yaml:2:1: extend: expected a known key, got 'extend' (did you mean 'extends'?)",
        "shardlint.yaml:4:3: lint.selct: expected a known key, got 'selct' (did you mean 'select'?)",
        "shardlint.yaml:5:19: lint.select[2]: expected a selector, got an empty string",
        "shardlint.yaml:5:23: lint.select[3]: expected a selector, got a list",
        "shardlint.yaml:6:15: lint.fail-level: expected error, warning, info or never, got 'fatal'",
        "shardlint.yaml:7:10: lint.heavy: expected true or false, got 'maybe'",
        "shardlint.yaml:8:20: lint.severity.D302: expected off, info, warning or error, got 'warn'"
        " (did you mean 'warning'?)",
        "shardlint.yaml:8:32: lint.severity.D303: expected off, info, warning or error, got true",
        "shardlint.yaml:9:19: lint.options.D302: expected a mapping, got 3",
        "shardlint.yaml:11:7: lint.suppress[0]: expected the key 'reason' (a reason), got a mapping without it",
        "shardlint.yaml:11:14: lint.suppress[0].rule: expected the exact code or name of a rule, got 'D3'",
        "shardlint.yaml:11:41: lint.suppress[0].expires: expected a date YYYY-MM-DD, got 'tomorrow'",
        "shardlint.yaml:12:14: lint.suppress[1].rule: expected the code or name of a rule or a list with at least"
        " one item, got an empty list",
        "shardlint.yaml:12:27: lint.suppress[1].subject: expected a glob, got an empty string",
        "shardlint.yaml:12:39: lint.suppress[1].reason: expected a reason, got an empty string",
        "shardlint.yaml:12:52: lint.suppress[1].expect: expected an integer of at least 1, got 0",
        "shardlint.yaml:12:64: lint.suppress[1].expires: expected a date YYYY-MM-DD, got '2026-1-1'",
        "shardlint.yaml:12:74: lint.suppress[1].line: expected a known key, got 'line'"
        " (known keys: rule, subject, reason, expires, expect)",
        "shardlint.yaml:13:7: lint.suppress[2]: expected a mapping, got 'rule-crashed'",
        "shardlint.yaml:14:14: lint.suppress[3].rule: expected a rule that can be suppressed, got 'SL001',"
        " which never can",
        "shardlint.yaml:16:25: contract.probes[0].comparison: expected exact or numeric, got 'fuzzy'",
        "shardlint.yaml:16:38: contract.probes[0].glob: expected a glob, got an empty string",
        "shardlint.yaml:16:43: contract.probes[1]: expected the key 'glob' (a glob), got a mapping without it",
        "shardlint.yaml:16:54: contract.probes[1].required: expected true or false, got 'sometimes'",
        "shardlint.yaml:18:14: contract.invariants[0].name: expected a name, got an empty string",
        "shardlint.yaml:18:27: contract.invariants[0].checker: expected package.module:name, got 'no colon'",
        "shardlint.yaml:20:14: contract.invariants[2].name: expected each name once, got 'a' again (first at line 19)",
        "shardlint.yaml:21:9: contract.data: expected a mapping, got a list",
        "shardlint.yaml:22:14: contract.topology[0]: expected the key 'axis' (a name), got a mapping without it",
        "shardlint.yaml:22:38: contract.topology[0].minimum: expected an integer of at least 1, got 0",
        "shardlint.yaml:22:50: contract.topology[0].divides: expected a number or a configuration key,"
        " got an empty list",
        "shardlint.yaml:23:17: contract.shared-state: expected a list, got 'kv'",
        "shardlint.yaml:24:24: checkpoint.renames[0]: expected the key 'to' (a replacement), got a mapping without it",
        "shardlint.yaml:25:17: packs.local[0]: expected a path relative to this file, got nothing",
        "shardlint.yaml:26:9: report: expected a mapping, got 'text'",
    ]


def test_a_problem_is_shown_with_its_line_and_a_caret():
    write("shardlint.yaml", "lint:\n  fail-level: err\n")
    with pytest.raises(ConfigError) as error:
        load_settings(Path.cwd())
    assert str(error.value) == (
        "shardlint.yaml:2:15: lint.fail-level: expected error, warning, info or never, got 'err'"
        " (did you mean 'error'?)\n"
        "  2 |   fail-level: err\n"
        "    |               ^"
    )


def test_a_long_line_is_cut_around_the_caret():
    write(
        "shardlint.yaml",
        "expert-axes: [" + "x" * 5000 + "]\nlint: {" + " " * 400 + "fail-level: err" + " " * 900 + "}\n",
    )
    with pytest.raises(ConfigError) as error:
        load_settings(Path.cwd())
    _, shown, caret = str(error.value).splitlines()
    assert len(shown) < 120
    assert shown[caret.index("^") :].startswith("err")


def test_toml_problems_have_places_too():
    found = problems(
        "[tool.shardlint.lint]\nselect = [\n  'D3',\n  3,\n]\nseverity.D302 = 'loud'\nheavy = 1\n"
        "[[tool.shardlint.lint.suppress]]\nrule = 'D501'\nsubject = 'a'\nexpires = 2026-12-31T10:00:00\n",
        "pyproject.toml",
    )
    assert found == [
        "pyproject.toml:4:3: lint.select[1]: expected a selector, got 3",
        "pyproject.toml:6:17: lint.severity.D302: expected off, info, warning or error, got 'loud'",
        "pyproject.toml:7:9: lint.heavy: expected true or false, got 1",
        "pyproject.toml:8:1: lint.suppress[0]: expected the key 'reason' (a reason), got a mapping without it",
        "pyproject.toml:11:11: lint.suppress[0].expires: expected a date YYYY-MM-DD, got 2026-12-31T10:00:00",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n", "shardlint.yaml:1:1: expected a mapping of settings, got a list"),
        (b"text\n", "shardlint.yaml:1:1: expected a mapping of settings, got 'text'"),
        (b"a: 1\nb: \xff\n", "shardlint.yaml:2:4: expected UTF-8 text, got the byte 0xff"),
        ("version: 1\n".encode("utf-16"), "shardlint.yaml:1:1: expected UTF-8 text, got the byte 0xff"),
        (
            b"a: [*x" + b", *x" * 3_000_000 + b"]",
            f"shardlint.yaml: expected at most {MAX_BYTES} bytes, got a larger file",
        ),
        (b"lint:\n\tselect: [D3]\n", "shardlint.yaml:2:1: expected spaces for indentation, got a tab"),
    ],
)
def test_one_clear_error(content, message):
    assert problems(content) == [message]


@pytest.mark.parametrize("content", [b"", b"# later\n", b"---\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_empty_configuration(content, folder):
    write("shardlint.yaml", content)
    settings = load_settings(folder)
    assert settings.file == folder / "shardlint.yaml"
    assert settings.layers[-1].select is None
    assert settings.fail_level is Severity.ERROR


@pytest.mark.parametrize(("kind", "got"), [("folder", "a folder"), ("link", "a link that leads nowhere")])
def test_what_has_the_name_and_is_no_file_is_not_passed_by(kind, got, folder):
    path = folder / "shardlint.yaml"
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    with pytest.raises(ConfigError) as error:
        load_settings(folder)
    assert str(error.value) == f"shardlint.yaml: expected a configuration file, got {got}"


@pytest.mark.parametrize(
    ("key", "meant"),
    [("select", "lint.select"), ("fail_level", "lint.fail-level"), ("local", "packs.local"), ("lints", "lint")],
)
def test_a_key_on_the_wrong_level_names_the_right_one(key, meant):
    assert problems(f"{key}: x\n") == [
        f"shardlint.yaml:1:1: {key}: expected a known key, got '{key}' (did you mean '{meant}'?)"
    ]


def test_a_byte_order_mark_is_no_obstacle(folder):
    write("shardlint.yaml", b"\xef\xbb\xbflint:\n  heavy: true\n")
    assert load_settings(folder).heavy
    write("shardlint.yaml", b"\xef\xbb\xbflint:\n  heavy: 3\n")
    assert problems(b"\xef\xbb\xbfheavy: 3\n")[0].startswith("shardlint.yaml:1:1: heavy")


def test_duplicate_keys_are_refused():
    assert problems("lint:\n  heavy: true\nlint:\n  heavy: false\n") == [
        "shardlint.yaml:3:1: lint: expected each key once, got it again (first at line 1)"
    ]


@pytest.mark.parametrize(
    ("text", "message"), [("a = ", "1:5"), ("[tool.shardlint\n", "1:16"), ("k = 1\nk = 2\n", "2:6")]
)
def test_broken_toml_is_told_when_it_is_ours(text, message):
    found = problems(f"{text}\n#[tool.shardlint]\n", "pyproject.toml")
    assert found[0].startswith(f"pyproject.toml:{message}: expected valid TOML, got a syntax error")


def test_broken_toml_of_others_is_not_ours(folder):
    write("pyproject.toml", "a = \n")
    assert load_settings(folder) == Settings()


def test_the_nearest_file_wins_and_git_is_the_border(folder):
    write("shardlint.yaml", "lint: {heavy: true}\n")
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    assert load_settings(inner).file == folder / "shardlint.yaml"
    write("a/pyproject.toml", "[tool.black]\n")
    assert load_settings(inner).file == folder / "shardlint.yaml"
    write("a/pyproject.toml", "[tool.shardlint]\n")
    assert load_settings(inner).file == folder / "a" / "pyproject.toml"
    assert load_settings(inner).heavy is False
    (folder / "a" / "b" / ".git").mkdir()
    assert load_settings(inner).file is None


def test_a_file_as_start_means_its_folder(folder):
    write("shardlint.yaml", "lint: {heavy: true}\n")
    assert load_settings(write("model.py", "")).heavy


def test_two_files_in_one_folder_are_a_warning(folder):
    write("shardlint.yaml", "lint: {heavy: true}\n")
    write(".shardlint.yaml", "lint: {heavy: false}\n")
    write("pyproject.toml", "[tool.shardlint]\n")
    settings = load_settings(folder)
    assert settings.file == folder / ".shardlint.yaml"
    assert settings.warnings == (
        "shardlint.yaml is not read: .shardlint.yaml wins over it",
        "pyproject.toml is not read: .shardlint.yaml wins over it",
    )


def test_explicit_and_isolated(folder):
    write("shardlint.yaml", "lint: {heavy: true}\n")
    other = write("ci/other.yaml", "lint: {fail-level: never}\n")
    assert load_settings(folder, explicit=other).fail_level is None
    assert load_settings(folder, isolated=True) == Settings()


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo"])
@pytest.mark.timeout(20)
def test_an_explicit_file_must_be_one(kind, folder):
    path = folder / "other.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(ConfigError) as error:
        load_settings(folder, explicit=path)
    got = {"missing": "no such file", "folder": "a folder", "fifo": "something that is not a regular file"}[kind]
    assert str(error.value) == f"other.yaml: expected a configuration file, got {got}"


def test_explicit_toml_needs_the_table(folder):
    with pytest.raises(ConfigError, match=r"expected a \[tool.shardlint\] table, got a file without"):
        load_settings(folder, explicit=write("x.toml", "[tool.other]\n"))


BASE = """\
lint:
  select: [D3]
  ignore: [D302]
  fail-level: never
  severity: {D301: off, D311: info}
  options: {D311: {a: 1, b: [1]}}
  suppress: [{rule: D501, subject: base, reason: r}]
packs: {require: [one], local: [rules.py]}
expert-axes: [ep]
contract: {placeholders: [A], name: base}
"""


def test_extending_edits(folder):
    write("shared/base.yaml", BASE)
    write(
        "shardlint.yaml",
        """\
extends: shared/base.yaml
lint:
  extend-select: [V002]
  heavy: true
  options: {D311: {b: [2], c: 3}}
  suppress: [{rule: D501, subject: mine, reason: r}]
packs: {require: [two], local: [mine.py]}
expert-axes: [efsdp]
contract: {placeholders: [B]}
""",
    )
    settings = load_settings(folder)
    assert settings.files == (folder / "shared/base.yaml", folder / "shardlint.yaml")
    assert [layer.select is None for layer in settings.layers] == [False, True]
    assert settings.get("lint.select") == ("D3",)
    assert settings.get("lint.ignore") == ("D302",)
    assert (settings.fail_level, settings.heavy) == (None, True)
    assert settings.options == {"D311": {"a": 1, "b": (2,), "c": 3}}
    assert [(item.subject, str(item.source)) for item in settings.suppressions] == [
        ("base", "shared/base.yaml:7"),
        ("mine", "shardlint.yaml:6"),
    ]
    assert settings.packs.require == ("one", "two")
    assert settings.packs.local == (folder / "shared/rules.py", folder / "mine.py")
    assert settings.expert_axes == ("efsdp",)
    assert settings.contract == {"placeholders": ("B",), "name": "base"}


def test_select_in_the_extending_file_starts_anew(folder):
    write("base.yaml", BASE)
    write("shardlint.yaml", "extends: [base.yaml]\nlint: {select: [D5], severity: {D501: error}}\n")
    settings = load_settings(folder)
    assert settings.get("lint.select") == ("D5",)
    assert settings.get("lint.ignore") is None
    assert settings.get("lint.severity") == {"D311": "info", "D501": "error"}


def test_later_files_win_and_each_is_read_once(folder):
    write("d.yaml", "lint: {suppress: [{rule: D501, subject: d, reason: r}], fail-level: info}\n")
    write("b.yaml", "extends: d.yaml\nlint: {fail-level: warning}\n")
    write("c.toml", "[tool.shardlint]\nextends = 'd.yaml'\n[tool.shardlint.lint]\nfail-level = 'never'\n")
    write("shardlint.yaml", "extends: [b.yaml, c.toml]\n")
    settings = load_settings(folder)
    assert [path.name for path in settings.files] == ["d.yaml", "b.yaml", "c.toml", "shardlint.yaml"]
    assert settings.fail_level is None
    assert len(settings.suppressions) == 1


def test_cycles_and_missing_files_are_told_at_the_line_that_names_them(folder):
    write("shardlint.yaml", "version: 1\nextends: [a.yaml, gone.yaml]\n")
    write("a.yaml", "extends: b.yaml\n")
    write("b.yaml", "extends: a.yaml\nlint: {heavy: 3}\n")
    with pytest.raises(ConfigError) as error:
        load_settings(folder)
    assert [str(problem) for problem in error.value.problems] == [
        "shardlint.yaml:2:19: extends[1]: expected a configuration file, got gone.yaml, which is not a file",
        "b.yaml:1:10: extends: expected files that do not extend each other, got the cycle a.yaml -> b.yaml -> a.yaml",
        "b.yaml:2:15: lint.heavy: expected true or false, got 3",
    ]
    assert error.value.problems[0].source_line == "extends: [a.yaml, gone.yaml]"


def test_extending_itself_is_a_cycle():
    assert problems("extends: shardlint.yaml\n") == [
        "shardlint.yaml:1:10: extends: expected files that do not extend each other,"
        " got the cycle shardlint.yaml -> shardlint.yaml"
    ]


def test_a_chain_without_end_is_refused(folder):
    for number in range(100):
        write(f"c{number}.yaml", f"extends: c{number + 1}.yaml\n")
    write("shardlint.yaml", "extends: c0.yaml\n")
    with pytest.raises(ConfigError, match="expected at most 20 files extending one another, got more"):
        load_settings(folder)


def test_shown_settings_say_where_they_come_from(folder):
    write("base.yaml", "lint: {ignore: [D302], heavy: true}\n")
    write(
        "shardlint.yaml",
        'extends: base.yaml\nlint:\n  ignore: ["D5"]\n  severity: {D311: off}\n  options: {D301: {"a b": [x y]}}\n',
    )
    lines = render_settings(load_settings(folder)).splitlines()
    assert lines[0] == "# from base.yaml, then shardlint.yaml"
    for line in (
        "lint.ignore[0]: D302  # base.yaml:1",
        "lint.ignore[1]: D5  # shardlint.yaml:3",
        "lint.severity.D311: off  # shardlint.yaml:4",
        "lint.heavy: true  # base.yaml:1",
        "lint.fail-level: error  # default",
        "lint.select:  # not set",
        "lint.options.D301.'a b'[0]: \"x y\"  # shardlint.yaml:5",
    ):
        assert line in lines


def test_shown_defaults_and_warnings(folder):
    assert render_settings(Settings()).startswith(
        "# no configuration file: every value is a default\nversion: 1  # default\n"
    )
    write("shardlint.yaml", "version: 1\n")
    write(".shardlint.yaml", "version: 1\n")
    assert "# warning: shardlint.yaml is not read" in render_settings(load_settings(folder))


def test_the_template_is_valid_and_so_is_everything_in_its_comments(folder):
    write("shardlint.yaml", TEMPLATE)
    settings = load_settings(folder)
    assert (settings.fail_level, settings.get("lint.select")) == (Severity.ERROR, ("ALL",))
    write("../shardlint-base.yaml", "version: 1\n")
    lines = TEMPLATE.splitlines()[3:]
    uncommented = [line.replace("# ", "", 1) if _is_setting(line) else line for line in lines]
    write("shardlint.yaml", "version: 1\n" + "\n".join(uncommented))
    full = load_settings(folder)
    assert len(full.suppressions) == 1
    assert full.contract["probes"][0]["glob"] == "model.embed_tokens.weight"
    assert full.checkpoint.renames == (("^transformer\\.", "model."), (r"^(h\.\d+\.)mlp\.c_fc\.", r"\1mlp.fc1."))
    Path("../shardlint-base.yaml").unlink()


def _is_setting(line):
    text = line.strip().removeprefix("#").strip()
    return line.strip().startswith("#") and (text.startswith("- ") or text.split(":")[0].replace("-", "").isalnum())


def test_the_schema_covers_every_key():
    schema = config_schema()
    json.dumps(schema)

    def keys(node, path=""):
        for name, inner in node.get("properties", {}).items():
            yield (where := f"{path}.{name}" if path else name)
            yield from keys(inner, where)
            for candidate in (inner, *inner.get("anyOf", ())):
                items = candidate.get("items", {})
                for item in (items, *items.get("anyOf", ())):
                    yield from keys(item, f"{where}[]")

    assert set(keys(schema)) == {path for path, _ in all_keys()}
    assert schema["additionalProperties"] is False
    assert schema["properties"]["lint"]["properties"]["suppress"]["items"]["required"] == ["rule", "subject", "reason"]
    severity = schema["properties"]["lint"]["properties"]["severity"]["additionalProperties"]
    assert severity == {"enum": ["off", "info", "warning", "error", False]}


def test_the_reference_has_a_row_for_every_key():
    text = config_reference()
    assert all(f"| `{path}` |" in text for path, _ in all_keys())
    assert "| `lint.fail-level` | error, warning, info or never | `error` |" in text
