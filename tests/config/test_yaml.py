import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardlint.config import yaml_source
from shardlint.config.nodes import MAX_BYTES, MAX_NODES, NodeKind, RefusedError, Text
from shardlint.config.yaml_source import read_yaml


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def _loader(request, monkeypatch):
    """Both parsers: libyaml's and the one in Python, which is used where libyaml is missing."""
    loader = getattr(yaml, request.param, None)
    if loader is None:
        pytest.skip("PyYAML without libyaml")
    monkeypatch.setattr(yaml_source, "_LOADER", loader)


def read(text):
    node, problems = read_yaml(Text.of("f.yaml", text))
    assert problems == []
    return node


def refused(text):
    with pytest.raises(RefusedError) as error:
        read_yaml(Text.of("f.yaml", text))
    return str(error.value)


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "---\n# nothing\n...\n"])
def test_a_file_without_content_sets_nothing(text):
    assert read(text).plain() == {}


@pytest.mark.usefixtures("_loader")
def test_places_and_plain_data():
    node = read('a: 1\nb:\n  - x\n  - {c: off, d: 2026-12-31}\n"e f": "7"\n')
    assert node.plain() == {"a": 1, "b": ["x", {"c": "off", "d": "2026-12-31"}], "e f": "7"}
    b = node.value[1]
    assert (b.line, b.column) == (2, 1)
    assert [(item.line, item.column) for item in b.node.value] == [(3, 5), (4, 5)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("true", True),
        ("~", None),
        ("", None),
        ("1_000", "1_000"),
        ("012", 12),
        ("0x1f", "0x1f"),
        ("1:30", "1:30"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("-3", -3),
        (".inf", ".inf"),
        ("2026-12-31", "2026-12-31"),
        ("9" * 30, "9" * 30),
        ("'1'", "1"),
    ],
)
def test_plain_scalars_are_what_they_look_like(text, value):
    assert read(f"k: {text}").plain() == {"k": value}


@pytest.mark.usefixtures("_loader")
def test_duplicate_keys_are_told_with_both_places():
    _, problems = read_yaml(Text.of("f.yaml", "a: 1\nb: {c: 1, c: 2}\na: 2\n"))
    assert [str(problem) for problem in problems] == [
        "f.yaml:2:11: c: expected each key once, got it again (first at line 2)",
        "f.yaml:3:1: a: expected each key once, got it again (first at line 1)",
    ]


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: expected one document, got a second one"),
        ("a: !!python/object/apply:os.system [ls]\n", "f.yaml:1:4: expected a plain value, got the tag"),
        ("a: !!str 1\n", "f.yaml:1:4: expected a plain value, got the tag"),
        ("b: &x {c: 1}\na:\n  <<: *x\n", "f.yaml:3:3: expected a plain key, got a merge key"),
        ("? [a]\n: 1\n", "f.yaml:1:3: expected a plain key, got something else"),
        ("a: *b\n", "f.yaml:1:4: expected an anchor that is defined above, got the alias *b"),
        ("a: &b [*b]\n", "f.yaml:1:8: expected a value, got the alias *b inside the value that it names"),
        ("a:\n\tb: 1\n", "f.yaml:2:1: expected spaces for indentation, got a tab"),
        ("a: [1, 2\n", "expected valid YAML, got a syntax error"),
        ("a: 'x\n", "expected valid YAML, got a syntax error"),
        ("a: b: c\n", "f.yaml:1:5: expected valid YAML, got a syntax error"),
        ("a: x\x00y\n", r"f.yaml:1:5: expected printable characters, got \x00"),
        ("a: 1\nb: \x1b[31m\n", r"f.yaml:2:4: expected printable characters, got \x1b"),
        ("k: " + "[" * 100_000, "expected at most 40 levels of nesting, got more"),
        ("k: " + "{a: " * 50_000, "expected at most 40 levels of nesting, got more"),
        ("- " * 20_000 + "x", "expected at most 40 levels of nesting, got more"),
    ],
)
def test_one_clear_error(text, message):
    assert message in refused(text)


def laughs(levels):
    lines = ["a0: &a0 [" + ", ".join(["lol"] * 9) + "]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.timeout(30)
def test_billion_laughs_end_at_once():
    message = f"expected at most {MAX_NODES} values with all aliases expanded, got more"
    assert message in refused(laughs(30))
    assert message in refused("a: &a [x]\nb: [" + "*a, " * (MAX_BYTES // 5) + "]")


def test_a_modest_alias_is_fine():
    assert read("a: &x [1, 2]\nb: *x\n").plain() == {"a": [1, 2], "b": [1, 2]}


plain_data = st.recursive(
    st.text("ab \u00e9:#'\"\\-", max_size=5) | st.integers(-99, 99) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc-. ", min_size=1), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abc", min_size=1), plain_data, max_size=4))
def test_json_is_read_as_it_is(data):
    import json

    assert read(json.dumps(data, indent=1)).plain() == data


@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("ab:[]{}&*!|>-?,#'\"\\%@`\n\t ", max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        read_yaml(Text.of("f.yaml", text))
        message = "expected"
    except RefusedError as error:
        message = str(error)
    assert "expected" in message
    assert "\n" not in message


def test_kinds():
    node = read("a: {}\nb: []\nc: yes\nd: 'yes'\n")
    kinds = [entry.node.kind for entry in node.value]
    assert kinds == [NodeKind.MAPPING, NodeKind.SEQUENCE, NodeKind.PLAIN, NodeKind.STRING]
    assert [entry.node.boolean() for entry in node.value] == [None, None, True, None]
