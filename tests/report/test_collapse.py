"""Collapsing joins what differs in layer and expert numbers alone, and never claims a finding that is not there."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from shardlint import Finding, Phase, Severity, SubjectKind
from shardlint.report.collapse import groups


def finding(subject, message="it is wrong", **more):
    return Finding(
        code="D501",
        name="coverage-incomplete",
        phase=Phase.D5,
        severity=more.pop("severity", Severity.WARNING),
        subject=subject,
        kind=SubjectKind.TENSOR,
        message=message,
        **more,
    )


def expand(text):
    """Every name that a collapsed name stands for."""
    parts = []
    for part in text.split(".") if "{" not in text else re.split(r"\.(?![^{]*\})", text):
        if part.startswith("{"):
            numbers = []
            for run in part[1:-1].split(","):
                low, _, high = run.partition("..")
                numbers += range(int(low), int(high or low) + 1)
            parts.append([str(number) for number in numbers])
        else:
            parts.append([part])
    return [".".join(row) for row in itertools.product(*parts)]


def test_layers_become_one_row_with_subject_message_and_evidence_joined():
    rows = groups(
        [
            finding(
                f"layers.{i}.up.weight",
                f"no source; nearest is layers.{i}.gate.weight",
                evidence={"nearest": (f"layers.{i}.gate.weight",), "shape": (2, 3)},
            )
            for i in range(32)
        ]
    )
    assert [row.subject for row in rows] == ["layers.{0..31}.up.weight"]
    assert rows[0].message == "no source; nearest is layers.{0..31}.gate.weight"
    assert dict(rows[0].evidence) == {"nearest": ("layers.{0..31}.gate.weight",), "shape": (2, 3)}
    assert len(rows[0].findings) == 32


def test_what_differs_otherwise_stays_apart():
    rows = groups(
        [
            finding("layers.0.w", evidence={"shape": (1,)}),
            finding("layers.1.w", evidence={"shape": (2,)}),
            finding("layers.2.w", severity=Severity.INFO, evidence={"shape": (1,)}),
            finding("layers.3.w", ranks=(1,), evidence={"shape": (1,)}),
            finding("layers.4.w", "ratio 3.5", evidence={"shape": (1,)}),
            finding("layers.5.w", "ratio 4.5", evidence={"shape": (1,)}),
        ]
    )
    assert [row.subject for row in rows] == [f"layers.{i}.w" for i in range(6)]


def test_file_names_and_sizes_are_not_taken_for_names():
    rows = groups(
        [
            finding("a.0.w", "in model-00001-of-00002.safetensors, 1.5GB"),
            finding("a.1.w", "in model-00002-of-00002.safetensors, 2.5GB"),
        ]
    )
    assert [row.message for row in rows] == [
        "in model-00001-of-00002.safetensors, 1.5GB",
        "in model-00002-of-00002.safetensors, 2.5GB",
    ]


def test_no_collapse_shows_every_finding():
    assert len(groups([finding(f"layers.{i}.w") for i in range(5)], collapse=False)) == 5


def test_findings_about_one_subject_are_counted():
    rows = groups([finding("w", key="a"), finding("w", key="b")])
    assert [(row.subject, len(row.findings)) for row in rows] == [("w", 2)]


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1))
def test_every_row_stands_for_exactly_its_findings(cells):
    findings = [finding(f"layers.{layer}.experts.{expert}.w") for layer, expert in sorted(cells)]
    rows = groups(findings)
    for row in rows:
        assert sorted(expand(row.subject)) == sorted(item.subject for item in row.findings)
    assert sorted(item.subject for row in rows for item in row.findings) == sorted(item.subject for item in findings)


@given(st.permutations([(layer, expert) for layer in range(3) for expert in range(3) if layer != expert]))
def test_rows_do_not_depend_on_the_order_of_findings(cells):
    rows = groups([finding(f"layers.{layer}.experts.{expert}.w") for layer, expert in cells])
    assert [row.subject for row in rows] == [
        "layers.0.experts.{1..2}.w",
        "layers.1.experts.{0,2}.w",
        "layers.2.experts.{0..1}.w",
    ]
