"""The kit for authors of rules: that it fails where it should."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest
from attrs import evolve

from shardlint import Facts, Finding, HeavyRule, LiveTarget, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.engine.runner import Status
from shardlint.facts.codec import decode_facts, encode_facts
from shardlint.testing import (
    BASES,
    CaseError,
    EditError,
    apply_edits,
    assert_findings,
    assert_not_evaluated,
    assert_rule_clean,
    base_snapshot,
    check_case,
    load_cases,
    load_folder,
    run_rule,
)
from shardlint_rules.pack import shardlint_rules


class WideNorm(Rule):
    """
    A norm is wide.

    ## What it does
    Looks.

    ## Why it is unsafe
    It is.

    ## What to do
    Narrow it.
    """

    code = "KIT001"
    name = "wide-norm"
    phase = Phase.D4
    severity = Severity.WARNING
    needs = (Section.MODEL,)

    def check(self, facts: Facts) -> Iterator[Finding]:
        for tensor in facts.model.tensors:
            if tensor.fqn.endswith("norm.weight") and tensor.shape != (4,):
                yield self.finding(
                    subject=tensor.fqn, message=f"{tensor.fqn} is {tensor.shape[0]} wide", evidence={"n": 1}
                )
        if facts.target == "unknown":
            raise NotEvaluated("the target is unknown")


CASE = """\
rule: {rule}
cases:
  - name: one
    about: A norm.
    kind: {kind}
    base: llama
{rest}
"""
FAILING = """\
    edits:
      - set: model.tensors[fqn=model.norm.weight].shape
        to: [5]
"""
EXPECT = """\
    expect:
      - subject: model.norm.weight
"""


def case_of(tmp_path, rest="", kind="fail", rule="KIT001"):
    path = tmp_path / "case.yaml"
    path.write_text(CASE.format(rule=rule, kind=kind, rest=rest))
    (case,) = load_cases(path)
    return case


def test_a_case_that_fits_passes(tmp_path):
    more = "        severity: warning\n        message: model.norm.weight is 5 wide\n        evidence: {n: 1}\n"
    check_case(case_of(tmp_path, FAILING + EXPECT + more), [WideNorm])


def test_a_rule_may_be_named_by_its_name(tmp_path):
    check_case(case_of(tmp_path, FAILING + EXPECT, rule="wide-norm"), [WideNorm])


@pytest.mark.parametrize(
    ("rest", "kind", "text"),
    [
        (EXPECT, "fail", "expected findings about"),
        (FAILING, "clean", "model.norm.weight is 5 wide"),
        (FAILING + EXPECT + "        severity: error\n", "fail", "expected severity error, found warning"),
        (FAILING + EXPECT + "        message: other\n", "fail", "expected message 'other'"),
        (FAILING + EXPECT + "        says: narrow\n", "fail", "does not say 'narrow'"),
        (FAILING + EXPECT + "        evidence: {n: 2}\n", "fail", "expected evidence n = 2, found 1"),
        (FAILING + EXPECT + "        owner: model\n", "fail", "expected owner 'model'"),
        ("    not-evaluated: because\n", "guard", "expected not-evaluated because of 'because', got clean"),
        ("    edits: [{set: target, to: unknown}]\n", "guard", "was not (fully) evaluated: the target is unknown"),
        ("    edits: [{set: target, to: unknown}]\n    not-evaluated: x-ray\n", "guard", "because of 'x-ray'"),
        (FAILING + EXPECT + "      - subject: model.norm.weight\n", "fail", "expected findings about"),
    ],
)
def test_a_case_that_does_not_fit_fails_and_says_why(tmp_path, rest, kind, text):
    with pytest.raises(AssertionError) as caught:
        check_case(case_of(tmp_path, rest, kind), [WideNorm])
    assert text in str(caught.value)


def test_two_findings_about_one_subject_are_matched_one_to_one(tmp_path):
    rest = FAILING + EXPECT + "        evidence: {n: 1}\n"
    case = case_of(tmp_path, rest)
    with pytest.raises(AssertionError):
        check_case(evolve(case, expect=case.expect * 2), [WideNorm])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rule: A\n", "expected the keys rule and cases"),
        ("rule: A\ncases: {}\n", "expected the keys rule and cases"),
        ("rule: A\nrule: B\ncases: []\n", "key 'rule' given twice"),
        ("rule: A\ncases: [{name: a, about: b, kind: clean, base: llama, typo: 1}]\n", "unknown typo"),
        ("rule: A\ncases: [{name: a, about: b, kind: clean}]\n", "expected name, about, base"),
        ("rule: A\ncases: [{name: a, about: b, kind: good, base: llama}]\n", "a kind of clean, fail, guard"),
        ("rule: A\ncases: [{name: a, about: b, kind: fail, base: llama}]\n", "a case of kind fail expects findings"),
        (
            "rule: A\ncases: [{name: a, about: b, kind: clean, base: l, expect: [{subject: x}]}]\n",
            "any other kind none",
        ),
        ("rule: A\ncases: [{name: a, about: b, kind: fail, base: l, expect: [{x: y}]}]\n", "an expected finding has"),
        ("rule: A\ncases: [&a {name: a, about: b, kind: clean, base: llama}, *a]\n", "case names given twice: a"),
        ("rule: [\n", "while parsing"),
    ],
)
def test_a_case_file_that_cannot_be_used_says_why(tmp_path, text, problem):
    path = tmp_path / "case.yaml"
    path.write_text(text)
    with pytest.raises(CaseError, match=r"case\.yaml") as caught:
        load_cases(path)
    assert problem in str(caught.value)


def test_an_empty_folder_is_no_test(tmp_path):
    with pytest.raises(CaseError, match="found none"):
        load_folder(tmp_path)


def test_a_case_for_an_unknown_rule_says_so(tmp_path):
    with pytest.raises(CaseError, match="no rule 'KIT002'"):
        check_case(case_of(tmp_path, FAILING + EXPECT, rule="KIT002"), [WideNorm])


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ({"set": "model.nothing.here", "to": 1}, "leads nowhere: nothing at '.nothing'"),
        ({"set": "model.tensors[fqn=absent].shape", "to": []}, "nothing at '[fqn=absent]'"),
        ({"drop": "model.tensors[99]"}, "nothing at '[99]'"),
        ({"add": "model.qualified_type", "item": 1}, "expected a list"),
        ({"set": "model"}, "expected set/to, add/item or drop"),
        ({"set": "model..x", "to": 1}, "cannot read the path"),
        ({"drop": 'checkpoint.index.weight_map["absent"]'}, "leads nowhere"),
    ],
)
def test_an_edit_that_edits_nothing_is_an_error(edit, problem):
    with pytest.raises(EditError) as caught:
        apply_edits(base_snapshot("llama"), [edit])
    assert problem in str(caught.value)


def test_an_edit_that_leaves_no_snapshot_names_the_place():
    with pytest.raises(Exception, match=r"model\.tensors\[\.*0?\.*\]\.shape"):
        apply_edits(base_snapshot("llama"), [{"set": "model.tensors[0].shape", "to": "wide"}])


def test_edits_reach_every_item_that_matches_and_leave_the_base_alone():
    before = base_snapshot("llama")
    after = apply_edits(before, [{"drop": "model.tensors[fqn~model.layers.*]"}])
    assert [tensor.fqn for tensor in after.model.tensors] == [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.rotary_emb.inv_freq",
        "lm_head.weight",
    ]
    assert before == base_snapshot("llama")


@pytest.mark.parametrize("name", BASES)
def test_every_rule_is_silent_about_every_base(name):
    facts = base_snapshot(name)
    assert decode_facts(encode_facts(facts)) == facts
    found = [
        finding
        for rule in shardlint_rules()
        if rule.cost.value == "light"
        for finding in run_rule(rule, facts).findings
    ]
    assert found == []


def test_an_unknown_base_names_the_bases():
    with pytest.raises(KeyError, match="llama-tied"):
        base_snapshot("lama")


def test_a_crash_is_never_taken_for_silence():
    class Crashing(WideNorm):
        __doc__ = WideNorm.__doc__
        code = "KIT002"
        name = "crashing"

        def check(self, facts):
            raise ZeroDivisionError("no")

    with pytest.raises(AssertionError, match="KIT002 crashed: ZeroDivisionError: no"):
        run_rule(Crashing, base_snapshot("plain"))


def test_assertions_tell_outcomes_apart():
    clean = run_rule(WideNorm, base_snapshot("llama"))
    assert clean.status is Status.CLEAN
    assert_rule_clean(clean)
    assert_findings(clean)
    wide = run_rule(
        WideNorm,
        apply_edits(base_snapshot("llama"), [{"set": "model.tensors[fqn=model.norm.weight].shape", "to": [5]}]),
    )
    assert_findings(wide, "model.norm.weight")
    for wrong in (lambda: assert_rule_clean(wide), lambda: assert_findings(wide), lambda: assert_not_evaluated(wide)):
        with pytest.raises(AssertionError):
            wrong()
    unknown = run_rule(WideNorm, evolve(base_snapshot("llama"), target="unknown"))
    assert_not_evaluated(unknown, "target is unknown")
    with pytest.raises(AssertionError):
        assert_rule_clean(unknown)


def test_the_kit_needs_neither_torch_nor_pytest():
    code = (
        "import sys, shardlint.testing, shardlint_rules.pack as pack; pack.shardlint_rules(); "
        "print(sorted({'torch', 'pytest', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ast.literal_eval(done.stdout) == []


class Weighed(HeavyRule):
    """
    A model is too heavy.

    ## What it does
    Weighs it.

    ## Why it is unsafe
    It sinks.

    ## What to do
    Throw something out.
    """

    code = "KIT009"
    name = "too-heavy"
    phase = Phase.V0
    severity = Severity.ERROR

    def check_live(self, facts: Facts, live: LiveTarget) -> Iterator[Finding]:
        if live.model > 3:
            yield self.finding(subject="scales", message=f"it weighs {live.model}")


def test_a_heavy_rule_is_run_over_live_objects():
    facts = base_snapshot("llama")
    assert run_rule(Weighed, facts, LiveTarget(model=5)).subjects == ("scales",)
    assert run_rule(Weighed, facts, LiveTarget(model=2)).status is Status.CLEAN
    without = run_rule(Weighed, facts)
    assert without.status is Status.NOT_EVALUATED
    assert "facts alone were given" in without.reason
