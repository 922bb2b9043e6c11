"""The report for programs."""

import io
import json
from pathlib import Path

import msgspec

import shardlint.report
from shardlint import FrozenDict
from shardlint.report import ReportOptions, report_schema, write_json
from shardlint.report.json import JsonReport, encode
from support.reports import sample, tie


def written(report):
    stream = io.StringIO()
    write_json(report, stream, ReportOptions())
    return stream.getvalue()


def test_the_shipped_schema_is_up_to_date():
    shipped = Path(shardlint.report.__file__).with_name("schema.json").read_text()
    assert shipped == encode(report_schema()) + "\n", (
        "write it anew: shardlint schema report > src/shardlint/report/schema.json"
    )


def test_the_schema_requires_every_key_of_the_document():
    schema = report_schema()
    top = schema["$defs"]["JsonReport"]
    assert set(top["required"]) == set(top["properties"]) == set(json.loads(written(sample())))


def test_the_document_is_what_the_schema_was_made_from():
    document = msgspec.json.decode(
        written(sample()), type=JsonReport, dec_hook=lambda kind, value: FrozenDict(value), strict=True
    )
    assert len(document.findings) == 33
    assert document.findings[1].evidence == {"shape": (64, 32), "dtype": "float32"}


def test_the_document_says_everything():
    document = json.loads(written(sample()))
    assert document["version"] == 1
    assert document["verdict"] == "FAIL"
    assert document["exit_status"] == 1
    assert document["summary"]["statuses"]["not-evaluated"] == 4
    assert document["metadata"]["model"]["parameters"] == 291
    assert document["coverage"]["counts"]["targets"]["direct_load"] == 258
    assert document["suppressed"][0]["reason"] == "known since March"
    assert document["outcomes"][0] == {
        "code": "D101",
        "name": "rule-d101",
        "phase": "D1",
        "status": "not-evaluated",
        "findings": 0,
        "reason": "no contract was given",
        "lacks": ["contract"],
        "partial": False,
        "explicit": False,
        "pack": "shardlint",
        "judged": 0,
        "unknown": 0,
        "noun": "subject",
        "examined": "",
    }
    assert document["timing"]["rules"]["D406"] == 0.5


def test_times_stand_in_timing_alone():
    first, second = (json.loads(written(sample(seconds=seconds))) for seconds in (1.0, 2.0))
    assert first.pop("timing") != second.pop("timing")
    assert first == second


def test_names_that_are_no_unicode_are_escaped():
    document = json.loads(written(sample(findings=(tie(subject="w\udc80", evidence={"k\udc80": ("v\udc80",)}),))))
    assert document["findings"][0]["subject"] == "w\\udc80"
    assert document["findings"][0]["evidence"] == {"k\\udc80": ["v\\udc80"]}
