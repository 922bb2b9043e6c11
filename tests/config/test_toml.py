import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlint.config.nodes import NodeKind, RefusedError, Text
from shardlint.config.toml_source import read_toml

EXAMPLE = """\
# comment with [brackets] and k = 1
title = "a # b"
"quoted.key" = 1
[tool.other]
x = '''
[tool.shardlint]
y = 2
'''
[tool.shardlint]
version = 1
lint.select = [ # first
  "D3",
  'D4', # second
  [ "deep" ],
]
lint.severity = { D302 = "off", "a.b".c = "info" }
day = 2026-12-31
time = 2026-12-31T10:00:00
multi = \"\"\"
  x = "1"
  \\\"\"\" \"\"\"\"
[[tool.shardlint.suppress]]
rule = "a"
[[ tool . shardlint . suppress ]]
rule   =   "b"
[tool.shardlint.suppress.more]
z = true
[[tool.shardlint.suppress.list]]
[[tool.shardlint.suppress.list]]
q = 1.5
"""


def places(text):
    """Path to (line and column of key, line and column of value) of every entry."""
    found = {}

    def walk(node, path):
        if node.kind is NodeKind.MAPPING:
            for entry in node.value:
                found[(*path, entry.key)] = (entry.line, entry.column, entry.node.line, entry.node.column)
                walk(entry.node, (*path, entry.key))
        elif node.kind is NodeKind.SEQUENCE:
            for index, item in enumerate(node.value):
                found[(*path, index)] = (item.line, item.column)
                walk(item, (*path, index))

    walk(read_toml(Text.of("f.toml", text)), ())
    return found


def test_every_key_and_value_has_its_place():
    found = places(EXAMPLE)
    s = ("tool", "shardlint")
    assert found[("title",)] == (2, 1, 2, 9)
    assert found[("quoted.key",)] == (3, 1, 3, 16)
    assert found[("tool", "other", "x")] == (5, 1, 5, 5)
    assert found[(*s, "version")] == (10, 1, 10, 11)
    assert found[(*s, "lint", "select")] == (11, 6, 11, 15)
    assert [found[(*s, "lint", "select", n)] for n in range(3)] == [(12, 3), (13, 3), (14, 3)]
    assert found[(*s, "lint", "select", 2, 0)] == (14, 5)
    assert found[(*s, "lint", "severity", "D302")] == (16, 19, 16, 26)
    assert found[(*s, "lint", "severity", "a.b", "c")] == (16, 39, 16, 43)
    assert found[(*s, "day")] == (17, 1, 17, 7)
    assert found[(*s, "suppress", 0)] == (22, 1)
    assert found[(*s, "suppress", 0, "rule")] == (23, 1, 23, 8)
    assert found[(*s, "suppress", 1, "rule")] == (25, 1, 25, 12)
    assert found[(*s, "suppress", 1, "more", "z")] == (27, 1, 27, 5)
    assert found[(*s, "suppress", 1, "list", 1, "q")] == (30, 1, 30, 5)


def test_kinds():
    node = read_toml(
        Text.of("f.toml", "a = 1\nb = true\nc = 2026-01-01\nd = 2026-01-01T00:00:00\ne = 1.5\nf = 10:00:00\n")
    )
    kinds = [entry.node.kind for entry in node.value]
    assert kinds == [NodeKind.INTEGER, NodeKind.BOOLEAN, NodeKind.DATE, NodeKind.OTHER, NodeKind.FLOAT, NodeKind.OTHER]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = \n", "f.toml:1:5: expected valid TOML, got a syntax error: Invalid value"),
        ("a = 1\na = 2\n", "f.toml:2:6: expected valid TOML, got a syntax error: Cannot overwrite a value"),
        ("a = [1, 2", "f.toml: expected valid TOML, got a syntax error"),
        ("k = " + "[" * 50_000 + "]" * 50_000, "expected at most 40 levels of nesting, got more"),
        ("k = " + "[" * 60 + "]" * 60, "expected at most 40 levels of nesting, got more"),
        ("[" + "a." * 60 + "b]\n", "expected at most 40 levels of nesting, got more"),
        ("k = " + "9" * 5000, "expected valid TOML"),
    ],
)
def test_one_clear_error(text, message):
    with pytest.raises(RefusedError) as error:
        read_toml(Text.of("f.toml", text))
    assert message in str(error.value)


words = st.text("ab-_1", min_size=1, max_size=3)
keys = words | st.text('a."#=[] ', min_size=1, max_size=4)
scalars = st.integers(0, 9) | st.booleans() | st.text('ab#"[]{},=\\', max_size=5)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(keys, v, max_size=3), max_leaves=6)


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def inline(value, gap):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return f"[{gap}" + f",{gap}".join(inline(item, gap) for item in value) + f"{gap}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {inline(item, ' ')}" for key, item in value.items()) + "}"
    return str(value)


@given(
    st.dictionaries(keys, st.dictionaries(keys, values, max_size=3), max_size=3),
    st.sampled_from([" ", "\n", " # x]\n"]),
)
def test_the_places_of_values_hold_the_values(tables, gap):
    lines = []
    for name, table in tables.items():
        lines.append(f"[{quoted(name)}]")
        lines += [f"{quoted(key)} = {inline(value, gap)}" for key, value in table.items()]
    text = "\n".join(lines)
    cut = text.split("\n")
    for (name, *path), where in places(text).items():
        if len(path) != 1:
            continue
        line, column, value_line, value_column = where
        assert cut[line - 1][column - 1 :].startswith(quoted(path[0]))
        expected = inline(tables[name][path[0]], gap).split("\n")[0]
        assert cut[value_line - 1][value_column - 1 :].startswith(expected)


@given(st.text("a=[]{}\"'.,#\n\\ 1-", max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        read_toml(Text.of("f.toml", text))
        message = "expected"
    except RefusedError as error:
        message = str(error)
    assert "expected" in message
    assert "\n" not in message
