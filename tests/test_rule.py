"""The rules for rules: what a class must say, how its page is read, what a finding must hold."""

import pytest
from attrs import field, frozen

from shardlint import (
    Cost,
    Finding,
    HeavyRule,
    Phase,
    Rule,
    RuleDefinitionError,
    Section,
    Severity,
    SubjectKind,
    Unknown,
)
from shardlint.rule import Page
from support.sample_rules import PAGE, rule


@frozen(kw_only=True)
class NeedsValue:
    limit: int


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"code": None}, "code must be a str, got None"),
        ({"code": "d201"}, "code 'd201' is not a prefix of capitals and three digits"),
        ({"code": "D2011"}, "code 'D2011'"),
        ({"code": "D201\n"}, "code"),
        ({"code": "X001"}, "code 'X001'"),
        ({"name": "Bad_Name"}, "name 'Bad_Name' is not lower-case words joined by hyphens"),
        ({"name": "double--hyphen"}, "name"),
        ({"phase": "D2"}, "phase must be a Phase, got 'D2'"),
        ({"severity": "error"}, "severity must be a Severity"),
        ({"cost": "heavy"}, "cost must be a Cost"),
        ({"needs": [Section.MODEL]}, "needs must be a tuple of Section"),
        ({"needs": ("model",)}, "needs must be a tuple of Section"),
        ({"blocks": "D3"}, "blocks must be a tuple of str"),
        ({"blocks": ("",)}, "blocks takes ALL, phases, codes, code prefixes and tags (tag:...), got ''"),
        ({"blocks": ("some-rule",)}, "blocks takes ALL"),
        ({"tags": (1,)}, "tags must be a tuple of str"),
        ({"since": 1}, "since must be a str"),
        ({"__doc__": None}, "it has no docstring"),
        ({"__doc__": "Summary only."}, "its page lacks What it does, Why it is unsafe, What to do"),
        ({"__doc__": PAGE.replace("Summary.", "")}, "its page lacks a summary"),
        ({"__doc__": PAGE.replace("Nothing.", "")}, "its page lacks What to do"),
        ({"check": Rule.check}, "it defines neither judge() nor check()"),
        ({"subjects": lambda self, facts: ()}, "it defines subjects() and no judge()"),
        ({"noun": 1}, "noun must be a str"),
        ({"options_type": dict}, "options_type must be an attrs class"),
        ({"options_type": NeedsValue}, "every option needs a default; limit has none"),
    ],
)
def test_a_class_that_breaks_the_rules_for_rules(members: dict, text: str) -> None:
    with pytest.raises(RuleDefinitionError) as caught:
        rule("D201", **members)
    assert text in str(caught.value)
    assert "RuleD201" in str(caught.value)


def test_a_heavy_rule_needs_check_live_and_stays_heavy() -> None:
    with pytest.raises(RuleDefinitionError, match="defines no check_live"):
        rule("V002", base=HeavyRule, check_live=HeavyRule.check_live)
    with pytest.raises(RuleDefinitionError, match="has cost HEAVY"):
        rule("V002", base=HeavyRule, cost=Cost.LIGHT)


def test_an_abstract_base_is_no_rule() -> None:
    class Base(Rule, abstract=True):
        phase = Phase.D3

        def check(self, facts):
            return ()

    class Derived(Base):
        __doc__ = PAGE
        code = "D301"
        name = "derived"
        severity = Severity.INFO

    assert not hasattr(Base, "page")
    assert Derived.page.summary == "Summary."


def test_page_sections() -> None:
    page = Page.parse(
        "Line one\nand two.\n\n## What it does  \na\n\n### Deeper\nb\n\n```\n# no heading\n```\n## Empty\n"
    )
    assert page.summary == "Line one\nand two."
    assert page.sections == {"What it does": "a\n\n### Deeper\nb\n\n```\n# no heading\n```", "Empty": ""}


def test_page_of_an_indented_docstring() -> None:
    page = Page.parse("\n    Summary.\n\n    ## A\n    one\n      two\n    ")
    assert (page.summary, page.sections) == ("Summary.", {"A": "one\n  two"})


def test_a_finding_takes_why_and_what_to_do_from_the_page() -> None:
    finding = rule("D201", related_config=("layers",)).finding(subject="a", message="b", ranks=[1, 2])
    assert (finding.why, finding.remediation) == ("It is not.", "Nothing.")
    assert (finding.severity, finding.related_config, finding.ranks) == (Severity.ERROR, ("layers",), (1, 2))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"message": ""}, ValueError),
        ({"subject": 3}, TypeError),
        ({"message": None}, TypeError),
        ({"kind": "tensor"}, TypeError),
        ({"owner": 3}, TypeError),
        ({"ranks": ("1",)}, TypeError),
        ({"key": 3}, TypeError),
        ({"evidence": {"x": object()}}, TypeError),
        ({"severity": "error"}, TypeError),
        ({"why": " "}, ValueError),
        ({"remediation": ""}, ValueError),
    ],
)
def test_a_finding_that_says_too_little_or_something_else(changes: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        rule("D201").finding(**{"subject": "a", "message": "b", **changes})


def test_evidence_that_is_not_known_says_so() -> None:
    finding = rule("D201").finding(
        subject="a", message="b", evidence={"shape": (2, Unknown("packed")), "dtype": Unknown("not read")}
    )
    assert finding.evidence == {"shape": (2, "unknown: packed"), "dtype": "unknown: not read"}


def test_what_users_write_for_severities_and_phases() -> None:
    assert Severity.from_user(" Warning ") is Severity.WARNING
    assert Phase.from_user("d3") is Phase.D3
    with pytest.raises(ValueError, match="expected one of info, warning, error, got 'warn'"):
        Severity.from_user("warn")
    assert Severity.INFO < Severity.WARNING <= Severity.WARNING < Severity.ERROR
    assert max(Severity) is Severity.ERROR
    assert sorted(Phase)[0] is Phase.ENGINE
    assert all(phase.title for phase in Phase)


def test_options_are_the_defaults_unless_given() -> None:
    @frozen(kw_only=True)
    class Options:
        limit: int = field(default=3)

    made = rule("D201", options_type=Options)
    assert made.options == Options()
    assert type(made)(Options(limit=5)).options.limit == 5


def test_finding_kinds_are_a_closed_list() -> None:
    finding = rule("D201").finding(subject="a", message="b", kind=SubjectKind.UNIT)
    assert isinstance(finding, Finding)
    assert finding.kind.value == "unit"
