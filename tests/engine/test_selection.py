import itertools

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from shardlint import Phase, Rule, Severity
from shardlint.diagnostics import diagnostic
from shardlint.engine.selection import (
    Item,
    Layer,
    SelectionError,
    SeverityItem,
    flag_layer,
    select_rules,
    severity_from_user,
)
from shardlint.engine.source import SettingSource
from shardlint.plugins.registry import RegisteredRule

PAGE = "Summary.\n\n## What it does\nx\n## Why it is unsafe\nx\n## What to do\nx\n"


def rule(code, name, phase, *, tags=(), pack="shardlint"):
    members = {"code": code, "name": name, "phase": phase, "severity": Severity.ERROR, "tags": tags, "__doc__": PAGE}
    members["check"] = lambda self, facts: ()
    cls = type(name.title().replace("-", ""), (Rule,), members)
    return RegisteredRule(rule_class=cls, pack=pack, dist=f"dist-{pack}", version="1.0", root="/pack")


RULES = (
    rule("D301", "alias-conflict", Phase.D3),
    rule("D302", "mixed-domain", Phase.D3, tags=("moe",)),
    rule("D311", "cuts-head", Phase.D3),
    rule("D501", "coverage", Phase.D5),
    rule("V002", "weights-differ", Phase.V0),
    rule("ACM301", "acme-experts", Phase.D3, tags=("moe", "acme-own"), pack="acme"),
    rule("ACM501", "acme-files", Phase.D5, pack="acme"),
)
CODES = {item.rule_class.code for item in RULES}


def items(text, file="shardlint.yaml"):
    return tuple(Item(word, SettingSource(file, line, 5, "k")) for line, word in enumerate(text.split(), 1))


def layer(select=None, extend="", ignore="", severity=(), file="shardlint.yaml"):
    levels = tuple(
        SeverityItem(key, severity_from_user(value), SettingSource(file, 40 + n))
        for n, (key, value) in enumerate(severity)
    )
    return Layer(
        select=None if select is None else items(select, file),
        extend_select=items(extend, file),
        ignore=items(ignore, file),
        severity=levels,
    )


def enabled(*layers):
    return {item.rule.rule_class.code for item in select_rules(RULES, layers).decisions if item.enabled}


def decision(code, *layers):
    return next(item for item in select_rules(RULES, layers).decisions if item.rule.rule_class.code == code)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([], CODES),
        ([layer("ALL")], CODES),
        ([layer("D3")], {"D301", "D302", "D311", "ACM301"}),
        ([layer("phase:D3")], {"D301", "D302", "D311", "ACM301"}),
        ([layer("D30")], {"D301", "D302"}),
        ([layer("D")], {"D301", "D302", "D311", "D501"}),
        ([layer("D302")], {"D302"}),
        ([layer("mixed-domain")], {"D302"}),
        ([layer("tag:moe")], {"D302", "ACM301"}),
        ([layer("moe")], {"D302", "ACM301"}),
        ([layer("acme")], {"ACM301", "ACM501"}),
        ([layer("pack:acme")], {"ACM301", "ACM501"}),
        ([layer("ACM")], {"ACM301", "ACM501"}),
        ([layer("D3 V002")], {"D301", "D302", "D311", "ACM301", "V002"}),
        # the more specific wins, ignore wins ties
        ([layer("ALL", ignore="D3")], {"D501", "V002", "ACM501"}),
        ([layer("ALL D302", ignore="D3")], {"D302", "D501", "V002", "ACM501"}),
        ([layer("D3", ignore="D30")], {"D311", "ACM301"}),
        ([layer("D3", ignore="D")], {"D301", "D302", "D311", "ACM301"}),
        ([layer("D302 D501", ignore="D302")], {"D501"}),
        ([layer("D302 D501", ignore="mixed-domain")], {"D501"}),
        ([layer("D3", ignore="moe")], {"D301", "D302", "D311", "ACM301"}),
        ([layer("ALL", ignore="acme", extend="ACM301")], CODES - {"ACM501"}),
        ([layer(extend="D302", ignore="ALL")], {"D302"}),
        # layers: a higher one wins at equal specificity, select starts anew
        ([layer(ignore="D302"), layer(extend="D302")], CODES),
        ([layer("D302"), layer("D501")], {"D501"}),
        ([layer("ALL", ignore="D501"), layer("ALL")], CODES),
        ([layer("D3"), layer(extend="D501")], {"D301", "D302", "D311", "ACM301", "D501"}),
        ([layer(extend="D302"), layer(ignore="D302")], CODES - {"D302"}),
        ([layer(ignore="D302"), layer(extend="D3")], CODES - {"D302"}),
        ([layer(ignore="ALL"), layer("D501")], {"D501"}),
        # severity off is ignore
        ([layer(severity=[("D3", "off")])], {"D501", "V002", "ACM501"}),
        ([layer(severity=[("D3", "off"), ("D302", "warning")])], {"D302", "D501", "V002", "ACM501"}),
        ([layer("D302 D501", severity=[("D302", "off")])], {"D501"}),
        ([layer(severity=[("D302", "off")]), layer(extend="D302")], CODES),
        ([layer(severity=[("D302", "off")]), layer("D302")], {"D302"}),
        ([layer(severity=[("D302", "off")]), layer(severity=[("D302", "error")])], CODES),
    ],
)
def test_what_is_enabled(layers, expected):
    assert enabled(*layers) == expected


@pytest.mark.parametrize(
    ("code", "layers", "decided_by", "selector", "explicit"),
    [
        ("D302", [], "default", "ALL", False),
        ("D302", [layer("D5 D302")], "shardlint.yaml:2", "D302", True),
        ("D302", [layer("D5 mixed-domain")], "shardlint.yaml:2", "mixed-domain", True),
        ("D302", [layer("D5 D3")], "shardlint.yaml:2", "D3", False),
        ("D302", [layer("D5"), flag_layer(ignore=["D302"])], "--ignore", "D302", False),
        ("D302", [layer(ignore="D1 D302"), flag_layer(extend_select=["D302"])], "--extend-select", "D302", True),
        ("D302", [flag_layer(select=["D5"])], "--select", "", False),
        ("D302", [layer("D302 D5", severity=[("D302", "off")])], "shardlint.yaml:40", "D302", False),
    ],
)
def test_what_decided(code, layers, decided_by, selector, explicit):
    item = decision(code, *layers)
    assert (item.decided_by, item.selector, item.explicit) == (decided_by, selector, explicit)


def test_severity_comes_from_the_most_specific_then_the_highest_layer():
    low = layer(severity=[("D3", "info"), ("D302", "warning")])
    assert decision("D301", low).severity is Severity.INFO
    assert decision("D302", low).severity is Severity.WARNING
    assert decision("D302", low, flag_layer(severity=["D3=error"])).severity is Severity.WARNING
    raised = decision("D302", low, flag_layer(severity=["mixed-domain=error"]))
    assert (raised.severity, raised.severity_from) == (Severity.ERROR, "--severity")
    assert decision("D501", low).severity is None
    assert decision("D302", low, layer("D3")).severity is Severity.WARNING


def test_every_unknown_selector_is_named_with_a_suggestion():
    with pytest.raises(SelectionError) as error:
        select_rules(
            RULES,
            [layer("D3 mixed-domian", severity=[("D999", "off")]), flag_layer(extend_select=["tag:mo", "what:x"])],
        )
    assert error.value.problems == (
        "shardlint.yaml:40: severity: 'D999' is not a rule, prefix, phase, tag or pack that is loaded",
        "shardlint.yaml:2:5: k: 'mixed-domian' is not a rule, prefix, phase, tag or pack that is loaded "
        "(did you mean 'mixed-domain'?)",
        "--extend-select: 'mo' is no tag of a loaded pack; there are: acme-own, moe",
        "--extend-select: 'what:x' begins with none of phase:, tag: and pack:",
    )


def test_the_wrong_case_is_suggested():
    with pytest.raises(SelectionError, match=r"did you mean 'ACM301'\?"):
        select_rules(RULES, [layer("acm301")])


def test_an_unknown_ignore_is_a_finding():
    selection = select_rules(RULES, [layer(ignore="D1 D302x")])
    (finding,) = selection.diagnostics
    assert (finding.code, finding.subject) == ("SL006", "D302x")
    assert finding.evidence["source"] == "shardlint.yaml:2"
    assert "did you mean 'D302'" in finding.message


def test_a_phase_without_rules_is_known():
    assert select_rules(RULES, [layer(ignore="D7")]).diagnostics == ()


def test_a_name_that_is_tag_and_pack_must_be_qualified():
    rules = (*RULES, rule("ACM502", "other", Phase.D5, tags=("acme",), pack="acme"))
    with pytest.raises(SelectionError, match="write tag:acme or pack:acme"):
        select_rules(rules, [layer("acme")])
    chosen = select_rules(rules, [layer("tag:acme")])
    assert [item.rule.rule_class.code for item in chosen.decisions if item.enabled] == ["ACM502"]


@pytest.mark.parametrize(
    "layers", [[layer("")], [layer(ignore="ALL")], [layer("D7")], [flag_layer(select=["D302"], ignore=["D302"])]]
)
def test_nothing_selected_is_an_error(layers):
    with pytest.raises(SelectionError, match="no rule is selected: all 7 loaded rules"):
        select_rules(RULES, layers)


def test_no_rule_loaded_is_an_error():
    with pytest.raises(SelectionError, match="no rule is loaded"):
        select_rules([], [])


def test_flags_take_commas_and_name_every_malformed_value():
    assert [item.selector for item in flag_layer(select=["D3, D5", "V"]).select] == ["D3", "D5", "V"]
    with pytest.raises(SelectionError) as error:
        flag_layer(select=["D3,,D5"], severity=["D3", "D5=loud"])
    assert error.value.problems == (
        "--select: expected selectors joined by commas, got 'D3,,D5'",
        "--severity: expected RULE=LEVEL, got 'D3'",
        "--severity: expected off, info, warning or error, got 'loud'",
    )


def test_engine_diagnostics_can_be_changed_only_where_they_may():
    unused = diagnostic("SL003", subject="x", message="unused")
    crash = diagnostic("SL001", subject="D301", message="crashed")
    raised = select_rules(RULES, [layer(severity=[("unused-suppression", "error")])])
    assert [item.severity for item in raised.adjust([crash, unused])] == [Severity.ERROR, Severity.ERROR]
    assert select_rules(RULES, [layer(ignore="SL003")]).adjust([crash, unused]) == (crash,)
    assert select_rules(RULES, [layer(ignore="SL003"), layer("ALL")]).adjust([unused]) == (unused,)
    with pytest.raises(SelectionError, match="SL001 rule-crashed can neither be ignored nor changed"):
        select_rules(RULES, [layer(ignore="rule-crashed")])
    with pytest.raises(SelectionError, match="SL004 expired-suppression is always on"):
        select_rules(RULES, [layer("SL004")])


def test_rules_ready_to_run():
    selection = select_rules(RULES, [layer("ACM301", severity=[("ACM301", "info")])])
    (item,) = selection.to_run()
    assert (item.rule.code, item.explicit, item.severity) == ("ACM301", True, Severity.INFO)
    assert (item.pack, item.pack_dist, item.pack_version, item.pack_root) == ("acme", "dist-acme", "1.0", "/pack")


selectors = st.sampled_from(
    ["ALL", "D", "D3", "D30", "D302", "mixed-domain", "moe", "tag:moe", "acme", "ACM", "ACM301", "V0", "D5", "D501"]
)
some = st.lists(selectors, max_size=4)
levels = st.lists(st.tuples(selectors, st.sampled_from(["off", "info", "error"])), max_size=3)
layers_of_any_kind = st.builds(
    lambda select, extend, ignore, severity: layer(
        None if select is None else " ".join(select), " ".join(extend), " ".join(ignore), severity
    ),
    st.none() | some,
    some,
    some,
    levels,
)
stacks = st.lists(layers_of_any_kind, max_size=3)


def outcome(rules, layers):
    try:
        found = select_rules(rules, layers).decisions
    except SelectionError:
        return {}
    return {item.rule.rule_class.code: (item.enabled, item.explicit, item.severity) for item in found}


def on(layers):
    return {code for code, (enabled, *_) in outcome(RULES, layers).items() if enabled}


@given(stacks, st.randoms())
def test_the_order_of_rules_and_of_selectors_does_not_matter(layers, random):
    def mixed(things):
        return tuple(random.sample(things, len(things)))

    shuffled = [
        evolve(
            item,
            select=None if item.select is None else mixed(item.select),
            extend_select=mixed(item.extend_select),
            ignore=mixed(item.ignore),
        )
        for item in layers
    ]
    assert outcome(mixed(RULES), shuffled) == outcome(RULES, layers)


@given(stacks, layers_of_any_kind, selectors)
def test_selecting_more_never_switches_off_and_ignoring_more_never_on(below, top, selector):
    more = evolve(top, extend_select=(*top.extend_select, Item(selector, SettingSource("f", 99))))
    fewer = evolve(top, ignore=(*top.ignore, Item(selector, SettingSource("f", 99))))
    now = on([*below, top])
    assert now <= on([*below, more])
    assert on([*below, fewer]) <= now


@given(stacks, st.sampled_from(sorted(CODES)))
def test_the_command_line_has_the_last_word_about_one_rule(layers, code):
    assert code in on([*layers, flag_layer(extend_select=[code])])
    assert code not in on([*layers, flag_layer(ignore=[code])])
    assert on([*layers, flag_layer(select=[code])]) == {code}


@given(stacks)
def test_an_empty_layer_changes_nothing(layers):
    for at in range(len(layers) + 1):
        assert outcome(RULES, [*layers[:at], Layer(), *layers[at:]]) == outcome(RULES, layers)


def test_every_decision_names_who_decided():
    for first, second in itertools.product([layer("D3"), layer(ignore="D5")], repeat=2):
        assert all(item.decided_by for item in select_rules(RULES, [first, second]).decisions)
