"""Findings that concern some ranks only say which."""

from shardlint.report.concise import finding_line
from shardlint.rule import Finding, Phase, Severity, SubjectKind


def finding(**more):
    return Finding(
        code="D305",
        name="mixed-dtype-unit",
        phase=Phase.D3,
        severity=Severity.ERROR,
        subject="layers.0",
        kind=SubjectKind.UNIT,
        message="two dtypes",
        why="w",
        remediation="r",
        **more,
    )


def test_the_line_of_a_finding_names_its_ranks():
    assert finding_line(finding(ranks=(0, 2, 3))) == "error D305 mixed-dtype-unit layers.0: two dtypes (ranks: 0,2..3)"
    assert finding_line(finding()) == "error D305 mixed-dtype-unit layers.0: two dtypes"
