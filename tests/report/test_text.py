"""The report for people."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve

from shardlint import FrozenDict, Section, Severity
from shardlint.engine.runner import Status
from shardlint.report import ReportOptions, Verdict, write_concise, write_text
from shardlint.report.style import wants_color
from shardlint.report.summary import summary_line
from support.reports import METADATA, OUTCOMES, missing, outcome, sample, tie

FULL = """\
train.py:build
  llama: 500 modules, 291 parameters, 1 buffer, 8,030,261,248 elements
  ckpt: safetensors-sharded, 291 tensors, 4 files

warning D406 tie-not-real
  lm_head.weight
    is declared tied to model.embed_tokens.weight and has memory of its own

error D501 coverage-incomplete (32 findings)
  model.layers.{0..31}.mlp.up_proj.weight (32 tensors)
    has no source; nearest is model.layers.{0..31}.mlp.gate_proj.weight
      shape: [64, 32]
      dtype: float32
  Why         A tensor without a source keeps whatever its initialiser wrote.
  What to do  Either:

              - restore the key in the checkpoint, or
              - declare the tensor as `training-only`.
  Config      contract.training-only-targets

Coverage  incomplete; targets: 258 direct load, 32 unsupported missing target
          (by the load report)

Not evaluated
  no contract was given: D101, D503
  no load report was retained: D502
  the format of this checkpoint has no index: D505

Blocked
  blocked by D401: V001

Left out
  a heavy rule: ask for it with --heavy or by its exact code or name: V002

32 errors, 1 warning, 1 suppressed | 9 rules: 2 found, 1 clean, 4 not evaluated (2 need a contract, \
1 needs a load report, 1 lacks facts), 1 blocked, 1 heavy left out | FAIL
"""


def text(report, **options):
    stream = io.StringIO()
    write_text(report, stream, ReportOptions(**({"width": 80} | options)))
    return stream.getvalue()


def concise(report, **options):
    stream = io.StringIO()
    write_concise(report, stream, ReportOptions(**options))
    return stream.getvalue().splitlines()


def test_the_whole_report():
    assert text(sample()) == FULL


def test_str_of_a_report_is_the_text_report():
    assert str(sample()) == text(sample(), width=100)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_prose_stays_within_the_width(width):
    body = text(sample(), width=width, show_suppressed=True).splitlines()[:-1]
    too_long = [line for line in body if len(line) > width and len(line.split()) > 1 and "{0..31}" not in line]
    assert not too_long


def test_quiet_is_the_last_line_alone():
    assert text(sample(), verbosity=-1) == FULL.splitlines()[-1] + "\n"


def test_colours_change_nothing_but_colours():
    painted = text(sample(), color=True)
    assert "\x1b[1;31merror\x1b[0m" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == FULL


def test_suppressed_findings_are_listed_when_asked_for():
    shown = text(sample(), show_suppressed=True)
    assert "Suppressed (1 finding)" in shown
    assert "known since March (shardlint.yaml:12, until 2027-01-31)" in shown


def test_no_collapse_lists_every_subject():
    shown = text(sample(), collapse=False, verbosity=1)
    assert all(f"  model.layers.{layer}.mlp.up_proj.weight\n" in shown for layer in range(32))


def test_many_rows_are_cut_and_counted_unless_verbose():
    findings = tuple(
        tie(subject=f"name{letter}.weight", message=f"reason {letter}") for letter in "abcdefghijklmnopqrstuvwxyz"
    )
    report = sample(findings=findings)
    assert "... and 6 more findings: all with --verbose" in text(report)
    assert "namez.weight" not in text(report)
    assert "namez.weight" in text(report, verbosity=1)


def test_a_why_of_its_own_stands_with_its_finding():
    report = sample(findings=(missing(0), missing(1, subject="other.weight", why="For another reason.")))
    assert text(report).count("Why  ") == 2


def test_mixed_severities_of_one_rule_are_told_apart():
    report = sample(findings=(missing(0), missing(1, severity=Severity.INFO)))
    assert "error D501 coverage-incomplete\n" in text(report)
    assert "info D501 coverage-incomplete\n" in text(report)


def test_reasons_not_to_trust_the_run_are_told_before_the_last_line():
    report = sample(blocked_by=("D502 was selected by name and is not-evaluated",), verdict=Verdict.BLOCKED)
    assert text(report).splitlines()[-4:-2] == [
        "This run cannot be trusted",
        "  D502 was selected by name and is not-evaluated",
    ]
    assert text(report).endswith("| BLOCKED\n")


def test_timing_lists_the_slowest_first():
    shown = text(sample(), timing=True)
    assert shown.index("0.500000 s  D406") < shown.index("0.250000 s  D501")
    assert "0.500000" not in text(sample())


def test_verbose_names_the_rules_that_were_not_evaluated():
    assert "no contract was given: D101 rule-d101, D503 rule-d503" in text(sample(), verbosity=1)


def test_a_rule_evaluated_in_part_is_found_and_told():
    partial = outcome("D501", Status.FOUND, findings=1, reason="two keys have unknown conversions", partial=True)
    shown = text(sample(outcomes=(partial,)))
    assert "two keys have unknown conversions: D501 (in part)" in shown
    assert "1 rule: 1 found, 0 clean, 1 only partly evaluated" in shown


HOSTILE = "layers\x1b[31m.\u202eweight\n::error::x\r\udc80"


@pytest.mark.parametrize("write", [write_text, write_concise])
def test_control_characters_never_reach_the_terminal(write):
    report = sample(
        target=HOSTILE,
        findings=(tie(subject=HOSTILE, message=HOSTILE, evidence={"key": HOSTILE, HOSTILE: 1}, owner=HOSTILE),),
        outcomes=(*OUTCOMES, outcome("D506", Status.NOT_EVALUATED, reason=HOSTILE)),
        blocked_by=(HOSTILE,),
    )
    stream = io.StringIO()
    write(report, stream, ReportOptions(verbosity=1))
    assert all(char.isprintable() or char == "\n" for char in stream.getvalue())
    assert not any(line.startswith("::error") for line in stream.getvalue().splitlines())


def test_concise_has_one_line_for_each_finding_and_the_last_line():
    lines = concise(sample())
    assert lines[0] == (
        "warning D406 tie-not-real lm_head.weight: "
        "is declared tied to model.embed_tokens.weight and has memory of its own"
    )
    assert len(lines) == 34
    assert lines[-1] == FULL.splitlines()[-1]


def test_concise_lists_suppressed_findings_and_distrust():
    lines = concise(sample(blocked_by=("D502 crashed",)), show_suppressed=True)
    assert lines[-3].endswith("[suppressed: known since March]")
    assert lines[-2] == "untrusted D502 crashed"


def test_a_clean_run_says_so():
    report = sample(findings=(), suppressed=(), outcomes=(outcome("D504", Status.CLEAN),), verdict=Verdict.PASS)
    assert summary_line(report) == "0 errors, 0 warnings | 1 rule: 0 found, 1 clean | PASS"


@pytest.mark.parametrize(
    ("choice", "environment", "terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, True, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_who_gets_colours(choice, environment, terminal, expected):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    assert wants_color(stream, choice, environment) is expected


def test_every_format_is_the_same_bytes_whatever_the_hash_seed():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from support.reports import sample\n"
        "from shardlint.report import *\n"
        "[write(sample(), sys.stdout, ReportOptions()) for write in BUILTIN_REPORTERS.values()]\n"
    )
    tests = str(Path(__file__).parents[1])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, tests],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1
    assert outputs != {b""}


def test_the_report_of_equal_findings_is_equal():
    assert evolve(sample(), seconds=9.0) == sample()


def test_the_shape_of_a_scalar_and_evidence_without_a_value():
    finding = evolve(missing(0), evidence={"shape": (), "shapes": ((), (2,)), "nearest": (), "frame": ""})
    stream = io.StringIO()
    write_text(sample(findings=(finding,)), stream, ReportOptions())
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    assert {"shape: []", "shapes: [], [2]", "nearest: none"} <= set(lines)
    assert not [line for line in lines if line.startswith("frame:")]


def absent(*codes, reason="no optimizer was given", lacks=(Section.OPTIMIZER,), **more):
    return tuple(outcome(code, Status.NOT_EVALUATED, reason=reason, lacks=lacks, **more) for code in codes)


def block(outcomes, **options):
    shown = text(evolve(sample(), outcomes=tuple(outcomes)), **options)
    return shown.partition("\nNot evaluated\n")[2].partition("\n\n")[0].splitlines()


def test_codes_that_follow_each_other_are_one_run():
    codes = ("D603", "D601", "D602", "D605", "D606", "D608")
    assert block(absent(*codes)) == ["  no optimizer was given: D601-D603, D605, D606, D608"]


def test_of_many_runs_the_rest_is_a_number():
    codes = tuple(f"D6{number:02d}" for number in range(1, 31, 2))
    assert block(absent(*codes)) == ["  no optimizer was given: D601, D603, D605, D607, D609, D611, +9 more"]
    whole = " ".join(" ".join(block(absent(*codes), verbosity=1)).split())
    assert all(f"{code} rule-{code.lower()}" in whole for code in codes)


def test_a_rule_that_lacks_several_things_stands_under_the_first():
    both = absent("D705", reason="no step was traced; no contract was given", lacks=(Section.RUNTIME, Section.CONTRACT))
    one = absent("D704", reason="no step was traced", lacks=(Section.RUNTIME,))
    assert block(both + one) == ["  no step was traced: D704, D705"]
    assert len(block(both + one, verbosity=1)) == 2
    own = absent("D706", reason="no step was traced; it was skipped", lacks=())
    assert block(own) == ["  no step was traced; it was skipped: D706"]


def test_of_many_reasons_the_commonest_are_shown():
    many = [item for number in range(20) for item in absent(f"D1{number:02d}", reason=f"reason {number}", lacks=())]
    many += absent("D201", "D202", reason="the common one", lacks=())
    shown = block(many)
    assert len(shown) == 11
    assert "  the common one: D201, D202" in shown
    assert shown[-1] == "  ... and 11 rules for 11 other reasons: all with --verbose"
    assert len(block(many, verbosity=1)) == 21


def test_a_part_that_was_not_evaluated_stands_apart():
    part = outcome("D603", Status.FOUND, findings=1, partial=True, reason="no optimizer was given")
    assert block((*absent("D601", "D602"), part)) == ["  no optimizer was given: D601, D602, D603 (in part)"]


def brief(report, **options):
    return "\n".join(concise(report, **options))


@pytest.mark.parametrize("write", [text, brief])
def test_on_a_terminal_the_last_line_is_broken_between_words(write):
    whole = write(sample()).splitlines()[-1]
    broken = write(sample(), width=60, terminal=True)
    last = broken[broken.rindex("32 errors") :].splitlines()
    assert len(last) > 2
    assert all(len(line) <= 60 for line in last)
    assert " ".join(broken.split()).endswith(whole)
    assert write(sample(), width=60).splitlines()[-1] == whole


def test_a_broken_last_line_keeps_its_colours():
    painted = text(sample(), width=60, terminal=True, color=True)
    assert re.sub("\x1b\\[[0-9;]*m", "", painted) == text(sample(), width=60, terminal=True)
    assert painted.rstrip().endswith("\x1b[1;31mFAIL\x1b[0m")


def test_a_contract_in_place_of_a_packs_is_told():
    def with_contract(replaces):
        told = dict(METADATA) | {"contract": {"source": "shardlint.yaml", "replaces": replaces}}
        return evolve(sample(), metadata=FrozenDict(told))

    told = "  contract: shardlint.yaml, in place of the one of pack acme for llama"
    assert told in text(with_contract("pack acme for llama")).splitlines()
    assert "contract: shardlint.yaml" not in text(with_contract(None))
    assert "  contract: shardlint.yaml" in text(with_contract(None), verbosity=1).splitlines()
