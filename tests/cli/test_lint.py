"""`shardlint lint` on facts files: exit status, selection, reports."""

import json
import subprocess
import sys
from datetime import date

import pytest

from shardlint.report import BUILTIN_REPORTERS

NO_TORCH = """
import sys
from shardlint.cli.main import main
status = main(sys.argv[1:])
heavy = sorted(name for name in ("torch", "transformers", "numpy", "rich", "jinja2") if name in sys.modules)
print("LOADED", status, heavy, file=sys.stderr)
"""


def last(text):
    return text.splitlines()[-1]


def test_a_clean_target_is_0(run, clean):
    shown = run("lint", clean)
    assert (shown.status, shown.err) == (0, "")
    assert last(shown.out).startswith("0 errors, 0 warnings | ")
    assert last(shown.out).endswith(" | PASS")


def test_findings_are_1_and_collapsed(run, faulty):
    shown = run("lint", faulty)
    assert (shown.status, shown.err) == (1, "")
    assert "error D401 meta-tensor-left (2 findings)\n  layers.{1..2}.weight (2 tensors)\n" in shown.out
    assert last(shown.out).startswith("2 errors, 0 warnings | ")
    assert last(shown.out).endswith(" | FAIL")


def test_a_rule_selected_by_name_and_not_evaluated_is_2(run, clean):
    shown = run("lint", clean, "--select", "conversion-not-reversible")
    assert shown.status == 2
    assert "D502 conversion-not-reversible was selected by name and is not-evaluated" in shown.out
    assert last(shown.out).endswith(" | BLOCKED")


def test_exit_zero_turns_1_into_0_and_leaves_2(run, faulty):
    assert run("lint", faulty, "--exit-zero").status == 0
    assert run("lint", faulty, "--exit-zero", "--select", "D502").status == 2


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--fail-level", "never"), 0),
        (("--fail-level", "error"), 1),
        (("--severity", "D401=warning"), 0),
        (("--severity", "meta-tensor-left=warning", "--fail-level", "warning"), 1),
        (("--severity", "D401=off"), 0),
        (("--ignore", "D4"), 0),
        (("--ignore", "D4", "--select", "D401"), 1),
        (("--select", "D2"), 0),
        (("--select", "D1,D2"), 2),  # nothing of D1 could be judged
        (("--select", "D2", "--extend-select", "D401"), 1),
    ],
)
def test_selection_and_severity_decide(run, faulty, arguments, status):
    assert run("lint", faulty, *arguments).status == status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--select", "D9999"), "D9999"),
        (("--select", "meta-tensor-lef"), "did you mean 'meta-tensor-left'?"),
        (("--select", ","), "expected selectors joined by commas"),
        (("--severity", "D401=fatal"), "expected off, info, warning or error, got 'fatal'"),
        (("--severity", "D401"), "expected RULE=LEVEL"),
        (("--ignore", "ALL"), "no rule is selected"),
        (("--as-of", "31.12.2026"), "expected a date such as 2026-12-31, got '31.12.2026'"),
        (("--output-format", "jsn"), "no output format 'jsn' (did you mean 'json'?); valid: concise, json, text"),
        (("--output-format", "text,json"), "no output format 'text,json'"),
        (("--output-format", "json:"), "expected NAME or NAME:FILE"),
        (("--output-format", "json:no/such/file"), "found no folder 'no/such'"),
        (("--output-format", "json:."), "found a folder"),
        (("--output-format", "text", "--output-format", "json"), "text and json both go to standard output"),
        (("--output-format", "text:a", "--output-format", "json:./a"), "text and json both go to the file 'a'"),
        (("-q", "-v"), "exclude each other"),
        (("--config", "x", "--isolated"), "exclude each other"),
        (("--config", "nowhere.yaml"), "nowhere.yaml"),
        (("--require-pack", "acme"), "acme"),
        (("--disable-pack", "acme"), "cannot disable pack 'acme'"),
    ],
)
def test_usage_errors_are_2_and_say_what_was_expected(run, clean, tmp_path, arguments, message):
    before = set(tmp_path.iterdir())
    shown = run("lint", clean, *arguments)
    assert shown.status == 2
    assert message in (shown.err or shown.out).replace("\n    ", " ")
    assert "Traceback" not in shown.err
    assert set(tmp_path.iterdir()) == before


def test_a_json_report_and_a_text_report_in_one_run(run, faulty, tmp_path):
    shown = run("lint", faulty, "--output-format", "text", "--output-format", "json:report.json")
    assert "error D401" in shown.out
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["verdict"] == "FAIL"
    assert [item["subject"] for item in document["findings"]] == ["layers.1.weight", "layers.2.weight"]
    assert (tmp_path / "report.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_reports_in_files_leave_the_last_line_on_the_terminal(run, faulty, tmp_path):
    shown = run("lint", faulty, "--output-format", "json:report.json", "--output-format", "concise:report.txt")
    assert len(shown.out.splitlines()) == 1
    assert shown.out.strip() == last((tmp_path / "report.txt").read_text())


def test_json_output_is_the_same_bytes_for_every_hash_seed(clean, faulty):
    import os

    def once(seed):
        done = subprocess.run(
            [sys.executable, "-m", "shardlint", "lint", str(faulty), "--isolated", "--output-format", "json"],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=False,
        )
        document = json.loads(done.stdout)
        assert document.pop("timing")
        return json.dumps(document)

    assert once("1") == once("2")


@pytest.mark.parametrize("name", sorted(BUILTIN_REPORTERS))
def test_a_reporter_that_fails_leaves_no_file(run, faulty, tmp_path, monkeypatch, name):
    def broken(report, stream, options):
        stream.write("half")
        raise RuntimeError("no more")

    monkeypatch.setitem(BUILTIN_REPORTERS, name, broken)
    before = set(tmp_path.iterdir())
    shown = run("lint", faulty, "--output-format", f"{name}:report")
    assert shown.status == 2
    assert shown.err == f"Error: the output format '{name}' failed: RuntimeError: no more\n"
    assert set(tmp_path.iterdir()) == before


def test_an_existing_report_survives_a_failure_and_keeps_its_mode(run, faulty, tmp_path, monkeypatch):
    report = tmp_path / "report"
    report.write_text("old")
    report.chmod(0o640)
    monkeypatch.setitem(BUILTIN_REPORTERS, "text", lambda *_: 1 // 0)
    assert run("lint", faulty, "--output-format", "text:report").status == 2
    assert report.read_text() == "old"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run("lint", faulty, "--output-format", "text:report").status == 1
    assert report.read_text() != "old"
    assert report.stat().st_mode & 0o777 == 0o640


def test_settings_of_the_nearest_file_hold_and_flags_beat_them(run, faulty, tmp_path):
    (tmp_path / "shardlint.yaml").write_text("lint: {ignore: [D401]}\nreport: {output-format: [concise]}\n")
    assert run("lint", faulty).status == 0
    head, finding = run("lint", faulty, "--extend-select", "D401").out.splitlines()[:2]
    assert head == f"settings: {tmp_path / 'shardlint.yaml'}: 1 rule switched off"
    assert finding.startswith("error D401")
    assert run("lint", faulty, "--isolated").status == 1


def test_all_errors_of_a_configuration_are_shown_with_their_place(run, clean, tmp_path):
    (tmp_path / "shardlint.yaml").write_text("lint:\n  fail-level: x\n  heavy: y\n  sevrity: {}\n")
    shown = run("lint", clean)
    assert shown.status == 2
    for place in ("shardlint.yaml:2:15: lint.fail-level:", "shardlint.yaml:3:10: lint.heavy:", "shardlint.yaml:4:3:"):
        assert place in shown.err
    assert "did you mean 'severity'?" in shown.err


SUPPRESSING = """
lint:
  suppress:
    - {rule: D401, subject: "layers.1.*", reason: built lazily, expires: 2026-06-30}
    - {rule: D401, subject: "layers.9.*", reason: long gone}
"""


def test_suppressions_hide_and_are_listed(run, faulty, tmp_path):
    (tmp_path / "shardlint.yaml").write_text(SUPPRESSING)
    shown = run("lint", faulty, "--as-of", "2026-06-30", "--show-suppressed")
    assert last(shown.out).startswith("1 error, 1 warning, 1 suppressed | ")
    assert "built lazily (shardlint.yaml:4, until 2026-06-30)" in shown.out
    assert "SL003 unused-suppression" in shown.out
    assert last(run("lint", faulty, "--as-of", "2026-07-01").out).startswith("3 errors, 1 warning | ")
    assert last(run("lint", faulty, "--no-suppressions").out).startswith("2 errors, 0 warnings | ")


def test_suppressed_findings_stay_in_the_json_report(run, faulty, tmp_path):
    (tmp_path / "shardlint.yaml").write_text(SUPPRESSING)
    document = json.loads(run("lint", faulty, "--as-of", "2026-06-30", "--output-format", "json").out)
    assert [item["finding"]["subject"] for item in document["suppressed"]] == ["layers.1.weight"]


def test_the_suppressions_command(run, faulty, tmp_path):
    assert run("suppressions").out == "0 suppressions\n"
    (tmp_path / "shardlint.yaml").write_text(SUPPRESSING)
    shown = run("suppressions", "--as-of", "2026-07-01").out
    assert "expired D401 layers.1.*\n  reason   built lazily\n  where    shardlint.yaml:4\n" in shown
    assert "not-judged D401 layers.9.*" in shown
    judged = json.loads(run("suppressions", faulty, "--as-of", "2026-06-30", "--output-format", "json").out)
    assert [(item["state"], item["matched"]) for item in judged] == [("active", 1), ("unused", 0)]
    assert judged[0]["expires"] == "2026-06-30"


def test_suppressions_are_judged_by_today_unless_told(run, faulty, tmp_path, monkeypatch):
    today = date.today().isoformat()
    (tmp_path / "shardlint.yaml").write_text(
        f"lint: {{suppress: [{{rule: D401, subject: '**', reason: x, expires: {today}}}]}}\n"
    )
    assert last(run("lint", faulty).out).startswith("0 errors, 0 warnings, 2 suppressed | ")


def test_timing_lists_rules(run, faulty):
    assert " s  D401 meta-tensor-left" in run("lint", faulty, "--timing").out


def test_colours_on_demand(run, faulty, monkeypatch):
    assert "\x1b[" in run("lint", faulty, "--color", "always").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run("lint", faulty).out
    assert "\x1b[" not in run("lint", faulty, "--color", "never").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("lint", faulty).out


@pytest.mark.parametrize(
    "arguments",
    [
        ("lint", "{facts}"),
        ("lint", "{facts}", "--output-format", "json"),
        ("rule", "--all"),
        ("rules",),
        ("rules", "--enabled"),
        ("packs",),
        ("config", "show"),
        ("config", "validate"),
        ("config", "schema"),
        ("suppressions",),
        ("schema", "facts"),
        ("schema", "report"),
        ("--help",),
    ],
)
def test_nothing_imports_torch_without_a_live_model(faulty, arguments):
    words = [str(faulty) if word == "{facts}" else word for word in arguments]
    done = subprocess.run([sys.executable, "-c", NO_TORCH, *words], capture_output=True, text=True, check=True)
    status = 1 if arguments[0] == "lint" else 0
    assert last(done.stderr) == f"LOADED {status} []"
